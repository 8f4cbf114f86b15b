"""Renderers by name: those of lbagent, and plug-ins by the entry points of the group `lbagent.renderers`.

An entry point names a factory (service_renderer.py). Nothing is imported until a renderer is used; plug-ins are looked for only
where a name is not one of lbagent's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from lbagent.errors import ConfigError, LbError, NotFound, Unsupported
from lbagent.render.service_renderer import API_VERSION, Factory, ServiceRenderer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "lbagent.renderers"
FROM = "lbagent"  # the distribution of those that are no plug-ins
# name -> its module; '': this version has none. In the order in which they are listed.
SHIPPED = {
    "bpf": "lbagent.targets.bpf.bpf_renderer",
    "nftables": "lbagent.targets.nftables.nft_renderer",
    "record": "lbagent.targets.record.record_renderer",
    "none": "lbagent.targets.none.none_renderer",
}
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_METHODS = (
    "add_service", "update_service", "delete_service", "update_node_port_services", "update_local_frontend_ifs",
    "update_local_backend_ifs", "resync", "flush", "dump", "verify", "capabilities", "close",
)  # fmt: skip


class RendererError(LbError):
    """A renderer raised, did not return, or returned what it must not."""


class Unavailable(Unsupported):
    """A renderer that exists and cannot be used here."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name)
        self.args = (f"--renderer {name} is not available: {reason}",)
        self.reason = reason


class PlugIn(NamedTuple):
    """A renderer of another distribution. `fault`: why it cannot be used, before anything is imported."""

    name: str
    distribution: str
    entry_point: EntryPoint
    fault: str = ""

    def load(self) -> Factory:
        """Import it, and return its factory. Raises RendererError."""
        if self.fault:
            raise RendererError(self.fault)
        try:
            factory: Any = self.entry_point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - importing a plug-in runs its code
            raise RendererError(f"{self.place} cannot be loaded: {type(error).__name__}: {error}") from None
        if not callable(factory):
            raise RendererError(f"{self.place} is a {type(factory).__name__}, no factory")
        needed = getattr(factory, "api_version", API_VERSION)
        if not isinstance(needed, int) or needed > API_VERSION:
            raise RendererError(
                f"{self.place} needs version {needed} of the renderer API; this lbagent has {API_VERSION}"
            )
        made: Factory = factory
        return made

    @property
    def place(self) -> str:
        """Where it is: `MODULE:OBJECT of DISTRIBUTION`."""
        return f"{self.entry_point.value} of {self.distribution}"


def plug_ins() -> list[PlugIn]:
    """Return every plug-in, also those that cannot be used."""
    from importlib.metadata import entry_points

    # a distribution that is found at two places of the path counts once
    found = {(each.name, each.value, each.dist.name if each.dist else ""): each for each in entry_points(group=GROUP)}
    places: dict[str, list[str]] = {}
    for name, value, distribution in found:
        places.setdefault(name, []).append(f"{value} of {distribution}")
    return [
        PlugIn(name, distribution, each, _fault(name, places[name]))
        for (name, _, distribution), each in sorted(found.items())
    ]


def _fault(name: str, places: list[str]) -> str:
    if name in SHIPPED or name == "auto":
        return f"lbagent itself has a renderer {name}; it is used"
    if len(places) > 1:
        return f"installed twice: {', '.join(sorted(places))}; uninstall one"
    return ""


def plug_in(name: str) -> PlugIn | None:
    """Return the plug-in of a name, None where there is none."""
    return next((each for each in plug_ins() if each.name == name), None)


def names() -> list[str]:
    """Return every name that --renderer accepts beside `auto`, lbagent's own first."""
    return [*SHIPPED, *dict.fromkeys(each.name for each in plug_ins() if each.name not in SHIPPED)]


def factory_of(name: str) -> Factory:
    """Return the factory of a renderer. Raises NotFound with the names that exist, Unavailable, RendererError."""
    if name in SHIPPED:
        if not SHIPPED[name]:
            raise Unavailable(name, NOT_BUILT)
        module: Any = import_module(SHIPPED[name])
        made: Factory = module.factory
        return made
    if (found := plug_in(name)) is None:
        raise NotFound(f"unknown renderer {name!r}; there are {', '.join(names())}")
    return found.load()


NOT_BUILT = "this version of lbagent does not have it"


def renderer(name: str, settings: Mapping[str, str] = NO_SETTINGS) -> ServiceRenderer:
    """Return a new renderer. Raises NotFound, Unavailable, ConfigError for its settings, RendererError."""
    return make_renderer(name, factory_of(name), settings)


def make_renderer(name: str, factory: Factory, settings: Mapping[str, str]) -> ServiceRenderer:
    """Return what a factory makes, if it is a renderer. Raises ConfigError for its settings, LbError, RendererError."""
    try:
        made: Any = factory(settings)
    except LbError:
        raise
    except ValueError as error:
        raise ConfigError(f"--renderer {name}: {error}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may raise anything
        raise RendererError(f"renderer {name} cannot be made: {type(error).__name__}: {error}") from None
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise RendererError(f"renderer {name} is a {type(made).__name__} without {', '.join(missing)}")
    capabilities_of(name, made)
    found: ServiceRenderer = made
    return found


def capabilities_of(name: str, made: ServiceRenderer) -> frozenset[str]:
    """Return the words of a renderer. Raises RendererError."""
    try:
        found: Any = made.capabilities()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may raise anything
        raise RendererError(f"renderer {name}: capabilities raised {type(error).__name__}: {error}") from None
    if not isinstance(found, (frozenset, set)) or not all(isinstance(word, str) for word in found):
        raise RendererError(f"renderer {name}: capabilities returned {found!r:.80}, no frozenset of words")
    return frozenset(map(str, found))


def renderer_rows() -> Iterator[RendererRow]:
    """Yield each renderer, and whether this process could use it here. Plug-ins are imported."""
    for name, module in SHIPPED.items():
        if not module:
            yield RendererRow(name, available=False, reason=NOT_BUILT)
            continue
        found = import_module(module)
        reason = str(found.unavailable())
        yield RendererRow(name, available=not reason, reason=reason, capabilities=sorted(found.FEATURES))
    for each in plug_ins():
        yield _row(each)


def _row(each: PlugIn) -> RendererRow:
    try:
        made = make_renderer(each.name, each.load(), NO_SETTINGS)
        words = sorted(capabilities_of(each.name, made))
    except ConfigError as error:  # it needs settings: that is no reason not to use it
        return RendererRow(each.name, each.distribution, reason=error.problem)
    except LbError as error:
        reason = error.reason if isinstance(error, Unavailable) else str(error)
        return RendererRow(each.name, each.distribution, available=False, reason=reason)
    return RendererRow(each.name, each.distribution, capabilities=words)


def reason_of_plug_in(name: str) -> str:
    """Return why a plug-in cannot be used; '' when it can. It is imported."""
    return next((row.reason for row in map(_row, plug_ins()) if row.name == name and not row.available), "")


class RendererRow(Struct, rename={"from_": "from"}):
    """A renderer as `lbagent renderers` lists it."""

    name: str
    from_: str = FROM
    available: bool = True
    reason: str = ""  # why not; or which settings it needs
    capabilities: list[str] = []
