"""The text of a file of manifests: regular files of a bounded size, UTF-8."""

from __future__ import annotations

import os

from lbagent.kernel.regular_file import NOT_REGULAR, NotRegular, open_regular
from lbagent.model.message import Message

SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 64 << 20  # of one file: some 50,000 Services of 10 endpoints; parsed it takes some ten times as much memory


class UnreadableManifest(Exception):
    """The text as a whole is no manifest; `message` has place and reason, without what was kept."""

    def __init__(self, message: Message) -> None:
        super().__init__(str(message))
        self.message = message


def read_text(path: str, *, any_file: bool = False) -> str:
    """Return the text of a file. Raises UnreadableManifest if it cannot be read, is too large or is not UTF-8.

    Only regular files are read, unless `any_file`: a pipe in a watched folder would stop the agent.
    """
    try:
        with open(path, "rb") if any_file else open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise _too_large(path)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        is_other = isinstance(error, NotRegular) or (isinstance(error, IsADirectoryError) and not any_file)
        problem = NOT_REGULAR if is_other else f"cannot be read: {error.strerror}"
        raise UnreadableManifest(Message(problem, file=path)) from None
    return decode_text(data, path)


def _too_large(path: str) -> UnreadableManifest:
    return UnreadableManifest(
        Message(f"larger than {MAX_BYTES >> 20} MiB: spread its objects over several files", file=path)
    )


def decode_text(data: bytes, path: str) -> str:
    """Return the text of UTF-8 bytes. Raises UnreadableManifest."""
    if len(data) > MAX_BYTES:
        raise _too_large(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableManifest(Message(f"not UTF-8: {error.reason}", file=path, line=line)) from None
