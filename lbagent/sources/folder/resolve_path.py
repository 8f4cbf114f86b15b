"""From a folder, a file or stdin to a State, with no agent: for `plan`, `render` and `config check`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.model.message import Message
from lbagent.model.state import State
from lbagent.resolve import InForce, Options, resolve
from lbagent.resolve.ownership import OwnerOf
from lbagent.resolve.resolver import NOTHING
from lbagent.sources.folder import manifest_files
from lbagent.sources.folder.manifest_files import FileReading, ManifestFiles
from lbagent.textfile.read_text import MAX_BYTES, UnreadableManifest, decode_text

STDIN, STDIN_NAME = "-", "stdin"


class ResolvedPath(Struct, frozen=True):
    """What the objects of a path mean: a State without ids, and what is wrong with them."""

    state: State
    messages: Sequence[Message]


def resolve_path(
    path: str, options: Options, previous_owner: OwnerOf | None = None, in_force: InForce = NOTHING
) -> ResolvedPath:
    """Resolve a folder, a file or stdin ('-') from nothing. Raises ConfigError when there is no such path.

    With `previous_owner` and `in_force` it is resolved as by an agent that serves (resolver.py).
    """
    loaded = _load(path)
    resolution = resolve(loaded.snapshot(), options, previous_owner, in_force)
    return ResolvedPath(resolution.state, [*loaded.problems(), *resolution.messages])


def resolve_texts(texts: Mapping[str, str], options: Options) -> ResolvedPath:
    """Resolve files by name from nothing."""
    loaded = ManifestFiles(say_generation=False)
    for name, text in texts.items():
        try:
            reading = loaded.parse(name, text)
        except UnreadableManifest as error:
            reading = FileReading(name, None, error.message)
        loaded.accept(reading)
    resolution = resolve(loaded.snapshot(), options)
    return ResolvedPath(resolution.state, [*loaded.problems(), *resolution.messages])


def _load(path: str) -> ManifestFiles:
    if path != STDIN:
        try:
            return manifest_files.load(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name a folder of manifests, a file, or - for stdin") from None
    loaded = ManifestFiles(say_generation=False)
    try:
        text = decode_text(sys.stdin.buffer.read(MAX_BYTES + 1), STDIN_NAME)
        reading = loaded.parse(STDIN_NAME, text)
    except UnreadableManifest as error:
        reading = FileReading(STDIN_NAME, None, error.message)
    loaded.accept(reading)
    return loaded
