"""The data planes of `--renderer`, made of its words. One that is not used is not imported.

`bpf`, `nftables` and `none` are data planes themselves: their modules have `make(config, settings)`. All others are renderers
(render/service_renderer.py), and RendererPlane drives them; their modules, and plug-ins, have a factory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

from msgspec import Struct

from lbagent.config import Config
from lbagent.config.renderer_words import (
    AUTO,
    DEFAULT,
    RendererSettings,
    RendererWord,
    renderer_settings,
    renderer_words,
)
from lbagent.errors import ConfigError, Conflict
from lbagent.model.family import Family
from lbagent.render.renderer_names import NOT_BUILT, SHIPPED, Unavailable, factory_of, names, plug_in
from lbagent.targets.data_plane import DataPlane, LeftOver

log = logging.getLogger(__name__)
EGRESS = "nftables"  # does --egress-snat
TRANSLATING = ("bpf", "nftables")  # the first of them that is named serves; else the first renderer does
_WITHOUT_SETTINGS = frozenset({"bpf", "none"})


class ChosenRenderer(Struct, frozen=True):
    """One data plane of --renderer."""

    name: str
    settings: dict[str, str] = {}
    family: Family | None = None  # None: both
    is_shipped: bool = True
    instead_of_bpf: str = ""  # chosen by `auto`, because bpf cannot be used: why

    @property
    def families(self) -> frozenset[Family]:
        """The families that it serves."""
        return frozenset(Family) if self.family is None else frozenset((self.family,))


def chosen(config: Config) -> Sequence[ChosenRenderer]:
    """Return what --renderer names, the serving one first. Raises ConfigError, and Unavailable where `auto` finds none.

    Whether one of the others can be used turns out when it is opened.
    """
    words = config.renderer
    if config.egress_snat == "on" and words in (DEFAULT, (AUTO,)):
        words = (EGRESS,)
    found = [_chosen(word) for word in renderer_words(words)]
    if config.egress_snat == "on" and EGRESS not in [each.name for each in found]:
        raise ConfigError(
            f"--egress-snat needs --renderer {EGRESS}: {', '.join(each.name for each in found)} cannot do it"
        )
    given = [each.name for each in found]
    if twice := next((name for name in given if given.count(name) > 1), ""):
        raise ConfigError(f"--renderer: {twice} is given twice")
    claims = Claims()
    for each in found:
        if each.name in TRANSLATING:
            claims.add(each.name, each.families)
    return sorted(
        found, key=lambda each: TRANSLATING.index(each.name) if each.name in TRANSLATING else len(TRANSLATING)
    )


def _chosen(word: RendererWord) -> ChosenRenderer:
    if word.name == AUTO:
        if word.settings:
            raise ConfigError(f"--renderer auto={word.settings}: auto has no settings")
        return _automatic()
    is_shipped = word.name in SHIPPED
    if not is_shipped and plug_in(word.name) is None:
        raise ConfigError(f"--renderer: unknown renderer {word.name!r}; there are {', '.join(names())}")
    if word.settings and word.name == "none":
        raise ConfigError(f"--renderer none={word.settings}: none has no settings")
    settings, family = renderer_settings(word)
    if settings and word.name in _WITHOUT_SETTINGS:
        raise ConfigError(f"--renderer {word.name}={word.settings}: {word.name} has no settings but family")
    return ChosenRenderer(word.name, settings, family, is_shipped)


def _automatic() -> ChosenRenderer:
    """Return bpf where it can be used, else nftables. Raises Unavailable."""
    why_not_bpf = _reason("bpf")
    if not why_not_bpf:
        return ChosenRenderer("bpf")
    if why_not_nftables := _reason("nftables"):
        raise Unavailable(AUTO, f"bpf: {why_not_bpf}; nftables: {why_not_nftables}")
    return ChosenRenderer("nftables", instead_of_bpf=why_not_bpf)


def _reason(name: str) -> str:
    return str(import_module(SHIPPED[name]).unavailable()) if SHIPPED[name] else NOT_BUILT


class Claims:
    """Which data plane translates which family: never two of them."""

    def __init__(self) -> None:
        self._by_family: dict[Family, str] = {}

    def add(self, name: str, families: frozenset[Family]) -> None:
        """Take note of one. Raises ConfigError."""
        for family in sorted(families):
            other = self._by_family.setdefault(family, name)
            if other != name:
                raise ConfigError(
                    f"--renderer: {other} and {name} would both translate IPv{family.digit}; "
                    f"name one, or divide the families, as in {other}=family=ipv4 and {name}=family=ipv6"
                )


def data_planes(config: Config) -> list[DataPlane]:
    """Return the data planes of --renderer, not opened yet, the serving one first. Raises ConfigError, Unavailable."""
    if config.shadow:
        return [_comparing(config)]
    makers = _Makers(config)
    planes = []
    for index, each in enumerate(chosen(config)):
        if each.instead_of_bpf:
            log.warning("nftables is used instead of bpf", extra={"reason": each.instead_of_bpf})
        planes.append(makers.plane(each, is_serving=not index))
    if divided := translating(planes)[1:]:
        from lbagent.targets.plain_plane import PlainPlane

        for plane in divided:
            if isinstance(plane, PlainPlane):
                plane.number_above()
    return planes


def translating(planes: Sequence[DataPlane]) -> Sequence[DataPlane]:
    """Return the serving data plane, which is the first, and those that translate packets of another family."""
    return [plane for plane in planes if plane is planes[0] or plane.name in TRANSLATING]


def _comparing(config: Config) -> DataPlane:
    if config.renderer != DEFAULT:
        raise ConfigError(f"--shadow serves nothing: leave out --renderer {' '.join(config.renderer)}")
    from lbagent.targets.comparison.comparing_plane import ComparingPlane

    return ComparingPlane(config)


def require_alone(config: Config, names: Collection[str]) -> None:
    """Raise Conflict where another data plane than these translates packets: two would translate each of them."""
    named = [name for name in names if name in TRANSLATING]
    for name in TRANSLATING if named else ():
        if name in named or not SHIPPED[name]:
            continue
        if found := import_module(SHIPPED[name]).translates(config):
            raise Conflict(
                f"--renderer {' '.join(named)}: the data plane {name} of an earlier agent is in force ({found}), and both would"
                " translate each packet; nothing was changed; stop its agent and run `lbagent cleanup`, or name --renderer"
                f" {name}"
            )


def left_over(config: Config, names: Collection[str]) -> LeftOver | None:
    """Return the other data plane that translates packets, of which the one of --renderer takes over; None: there is none.

    Raises Conflict where the one does not serve both families, or the other one cannot be used by this process.
    """
    named = [name for name in names if name in TRANSLATING]
    for name in TRANSLATING if len(named) == 1 else ():
        module = import_module(SHIPPED[name]) if name not in named and SHIPPED[name] else None
        if module is None or not hasattr(module, "left_over") or not module.translates(config):
            continue
        if module.unavailable() or any(each.family for each in chosen(config)):
            break
        made: LeftOver = module.left_over(config)
        return made
    require_alone(config, names)
    return None


def kept_by_flows(config: Config) -> str:
    """Return which data plane of --renderer serves the flows that it has while another proxy has the new ones; '' none.

    nftables does not: the kernel translates its connections on. Nor does one of a single family.
    """
    found = [each.name for each in chosen(config) if each.family is None and _leaves_to_proxy(each.name)]
    return found[0] if found else ""


def left_to_proxy(config: Config) -> LeftOver | None:
    """Return what keeps these flows going; None: no packet meets them. Blocks."""
    name = kept_by_flows(config)
    if not name or not import_module(SHIPPED[name]).translates(config):
        return None
    made: LeftOver = import_module(SHIPPED[name]).left_to_proxy(config)
    return made


def _leaves_to_proxy(name: str) -> bool:
    return bool(SHIPPED.get(name)) and hasattr(import_module(SHIPPED[name]), "left_to_proxy")


class _Makers:
    """What the renderers of an agent share. It is imported and made for the first one."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._calls: Any = None
        self._surroundings: Any = None
        self._claims = Claims()

    def plane(self, each: ChosenRenderer, *, is_serving: bool) -> DataPlane:
        """Return a data plane."""
        if each.name in TRANSLATING:
            self._claims.add(each.name, each.families)
        make = getattr(import_module(SHIPPED[each.name]), "make", None) if each.is_shipped else None
        if make is not None:
            made: DataPlane = make(self._config, RendererSettings(each.settings, each.family))
            return made
        from lbagent.render.shared_calls import SharedCalls
        from lbagent.targets.renderer_plane import NodeSurroundings, RendererPlane

        if self._surroundings is None:
            self._calls = SharedCalls()
            self._surroundings = NodeSurroundings(self._config, self._calls)
        return RendererPlane(
            self._config,
            each.name,
            lambda: factory_of(each.name),
            each.settings,
            self._calls,
            self._surroundings,
            must_work=is_serving or each.is_shipped,
            family=each.family,
            on_translates=lambda: self._claims.add(each.name, each.families),
        )
