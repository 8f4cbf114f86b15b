"""The data planes that `--renderer` can name. One that is not used is not imported.

A new one is a folder beside this file and a line in `RENDERERS`. Its module has NAME, FEATURES, `make(config, settings)`, which
returns a DataPlane, and `unavailable()`, which returns why it cannot be used here. One with checks of its own also has
`checks()`, which returns its table of checks, and `offline_node(config)`, which returns what they read before the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from msgspec import Struct

from lbagent.config import Config
from lbagent.config.renderer_words import RendererWord, renderer_words
from lbagent.errors import ConfigError, Unsupported
from lbagent.model.check import Check, CheckGroup
from lbagent.targets.data_plane import DataPlane

FROM = "lbagent"  # the distribution that a data plane comes from
# name -> its module; '': this version has none. In the order in which they are listed.
RENDERERS = {
    "bpf": "lbagent.targets.bpf.bpf_renderer",
    "nftables": "",
    "record": "lbagent.targets.record.record_renderer",
    "none": "lbagent.targets.none.none_renderer",
}
WITH_SETTINGS = frozenset({"record"})
SERVING_FIRST = ("bpf",)  # of several, the one that balances packets serves; else the first one does
_NOT_BUILT = "this version of lbagent does not have it"


class RendererRow(Struct, rename={"from_": "from"}):
    """A data plane as `lbagent renderers` lists it."""

    name: str
    from_: str = FROM
    available: bool = True
    reason: str = ""  # why not
    capabilities: list[str] = []


def rows() -> Iterator[RendererRow]:
    """Yield each data plane, and whether this process could use it here."""
    for name, module in RENDERERS.items():
        if not module:
            yield RendererRow(name, available=False, reason=_NOT_BUILT)
            continue
        found = import_module(module)
        reason = str(found.unavailable())
        yield RendererRow(name, available=not reason, reason=reason, capabilities=sorted(found.FEATURES))


def named(config: Config) -> list[RendererWord]:
    """Return what --renderer names, in its order. Raises ConfigError."""
    words = renderer_words(config.renderer)
    for word in words:
        if word.name not in RENDERERS:
            raise ConfigError(f"--renderer: unknown renderer {word.name!r}; there are {', '.join(RENDERERS)}")
        if word.settings and word.name not in WITH_SETTINGS:
            raise ConfigError(f"--renderer {word.name}={word.settings}: {word.name} has no settings")
    names = [word.name for word in words]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(f"--renderer: {twice} is given twice")
    return words


def chosen(config: Config) -> Sequence[RendererWord]:
    """Return what --renderer names, the serving one first. Raises ConfigError, and Unsupported for one that cannot be used."""
    words = named(config)
    for word in words:
        if not RENDERERS[word.name]:
            raise _Unavailable(word.name, _NOT_BUILT)
    return sorted(words, key=lambda word: word.name not in SERVING_FIRST)


class _Unavailable(Unsupported):
    """A data plane that exists and cannot be used here."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name)
        self.args = (f"--renderer {name} is not available: {reason}",)


def data_planes(config: Config) -> list[DataPlane]:
    """Return the data planes of --renderer, not opened yet, the serving one first. Raises ConfigError, Unsupported."""
    return [_module(word.name).make(config, word.settings) for word in chosen(config)]


class OfflineDataPlane(NamedTuple):
    """A data plane of --renderer before the start."""

    name: str
    checks: CheckGroup[Any] | None  # None: it has none of its own
    reason: str = ""  # why it cannot be used here; only of one without checks
    balances: bool = False  # it balances packets


def offline_data_planes(config: Config) -> list[OfflineDataPlane]:
    """Return the data planes of --renderer and their checks. Raises ConfigError."""
    found = []
    for name, _ in named(config):
        module = _module(name) if RENDERERS[name] else None
        if module is None:
            found.append(OfflineDataPlane(name, None, _NOT_BUILT))
        elif hasattr(module, "checks"):
            group = CheckGroup(module.checks(), module.offline_node(config))
            found.append(OfflineDataPlane(name, group, balances=bool(module.FEATURES)))
        else:
            found.append(OfflineDataPlane(name, None, str(module.unavailable()), bool(module.FEATURES)))
    return found


def checks_of_data_planes() -> list[Check[Any]]:
    """Return the tables of all data planes with checks of their own."""
    modules = (import_module(module) for module in RENDERERS.values() if module)
    return [check for module in modules if hasattr(module, "checks") for check in module.checks()]


def _module(name: str) -> Any:
    return import_module(RENDERERS[name])
