"""A file that is read once, and again after each change. A ConfigMap of a Pod changes by a new link."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable

from lbagent.errors import ConfigError
from lbagent.kernel.regular_file import read_regular
from lbagent.textfile.read_text import UnreadableManifest, decode_text

log = logging.getLogger(__name__)
FILE_POLL_INTERVAL_S = 1.0
MAX_BYTES = 4 << 20


class FollowedFile:
    """The last good text of the file; None without a file."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError if the file cannot be read."""
        self.path = path
        self.text = read_text_of(path)

    async def follow(self, use: Callable[[str], None]) -> None:
        """Pass each new text of the file to `use`, until cancelled. A text that it rejects is logged, and changes nothing."""
        seen: str | ConfigError | None = self.text
        while self.path:
            await asyncio.sleep(FILE_POLL_INTERVAL_S)
            now: str | ConfigError | None
            try:
                now = await asyncio.to_thread(read_text_of, self.path)
            except ConfigError as error:
                now = error
            if _key(now) == _key(seen):
                continue
            seen = now
            try:
                if isinstance(now, ConfigError):
                    raise now
                assert now is not None
                use(now)
            except ConfigError as error:
                log.error("the configuration is not used; what was in force stays", extra={"error": str(error)})
            else:
                self.text = now
                log.info("the configuration was read again", extra={"file": self.path})


def _key(found: str | ConfigError | None) -> Hashable:
    return found.key if isinstance(found, ConfigError) else found


def read_text_of(path: str) -> str | None:
    """Return the text of a regular file, None for no path. Raises ConfigError."""
    if not path:
        return None
    try:
        data = read_regular(path, MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{error.strerror}", file=path) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=path)
    try:
        return decode_text(data, path)
    except UnreadableManifest as error:
        raise ConfigError(error.message.problem, file=path, line=error.message.line) from None
