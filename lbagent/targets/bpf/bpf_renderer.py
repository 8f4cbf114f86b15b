"""The data plane `bpf` as `--renderer` and `lbagent renderers` name it. It is imported whole when it is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lbagent.errors import AgentUnreachable, LbError
from lbagent.targets.data_plane import Feature

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lbagent.config import Config
    from lbagent.config.renderer_words import RendererSettings
    from lbagent.model.check import Check
    from lbagent.model.family import Family
    from lbagent.model.state import State
    from lbagent.render.renderer_types import Difference
    from lbagent.render.service_renderer import ServiceRenderer
    from lbagent.targets.bpf.checks.offline_context import OfflineContext
    from lbagent.targets.bpf.left_bpf import LeftBpf
    from lbagent.targets.bpf.left_explain import Explain
    from lbagent.targets.data_plane import AnnouncingPlane, LiveFlows, RecordedPackets

NAME = "bpf"
FEATURES = frozenset(Feature)


def make(config: Config, settings: RendererSettings) -> AnnouncingPlane:
    """Return the data plane, not opened yet. It has no settings but the family: its options are those of the agent."""
    if settings.family is not None:
        from lbagent.targets.bpf.bpf_one_family import BpfOneFamily

        return BpfOneFamily(config, FEATURES, settings.family)
    from lbagent.targets.bpf.bpf_plane import BpfDataPlane

    return BpfDataPlane(config, FEATURES)


def factory(settings: Mapping[str, str]) -> ServiceRenderer:
    """Return maps and programs behind the calls of the renderer API (bpf_service_renderer.py). Raises ConfigError."""
    from lbagent.targets.bpf.bpf_service_renderer import BpfServiceRenderer

    return BpfServiceRenderer(settings, FEATURES)


def remove(config: Config, before: Callable[[], None]) -> list[str]:
    """Remove what an agent left, and return it, one line each. Where something is there, `before` is called first."""
    from lbagent.targets.bpf.bpf_removal import remove as remove_all

    return remove_all(config.bpffs, before)


def left_serving(config: Config) -> list[tuple[str, str]]:
    """Return what serves packets without an agent: pairs of a word and a text for `lbagent status`."""
    from lbagent.targets.bpf.left_serving import left_serving as read

    return read(config.bpffs)


def recorded(
    config: Config, name_of: Callable[[int, str], str | None], others: Collection[bytes], *, redact: bool
) -> RecordedPackets:
    """Return events and maps for `lbagent record dump`, read from the pins. Raises NotFound, KernelError."""
    from lbagent.targets.bpf.bpf_record import bpf_record

    return bpf_record(config.bpffs, name_of, others, redact=redact)


def left_explainer(config: Config, name_of: Callable[[int, str], str | None]) -> AbstractContextManager[Explain]:
    """Return what explains packets over the pinned maps. Raises AgentUnreachable without them, Refused, LbError."""
    from lbagent.targets.bpf.left_explain import left_explainer as opened

    return opened(config.bpffs, config.name_of_node, name_of)


def live_flows(config: Config) -> LiveFlows:
    """Return what the pinned maps serve, and their live flows. Raises NotFound, KernelError."""
    from lbagent.targets.bpf.live_flows import live_flows as read

    return read(config.bpffs, config.name_of_node)


def translates(config: Config) -> str:
    """Return what of it translates packets now, without an agent or by one; '' nothing."""
    from lbagent.bpf.load.attach import attached
    from lbagent.maps.pins import pin_dir

    try:
        found = attached(pin_dir(config.bpffs))
    except (LbError, OSError):
        return ""
    return ", ".join(sorted(f"{item.hook} on {item.target.name}" for item in found))


def translated_families(config: Config) -> frozenset[Family]:
    """Return the families of the frontends that attached programs translate now; both where the maps cannot be read."""
    from lbagent.maps.kernel_maps import KernelMaps
    from lbagent.model.family import Family

    if not translates(config):
        return frozenset()
    try:
        with KernelMaps.open(config.bpffs, create=False) as maps:
            return frozenset(family for family in Family if maps.items(f"lb{family.digit}_service"))
    except (LbError, OSError):
        return frozenset(Family)


def left_over(config: Config) -> LeftBpf:
    """Return what keeps the flows of an earlier agent going while another data plane takes over."""
    from lbagent.targets.bpf.left_bpf import LeftBpf

    return LeftBpf(config)


def left_to_proxy(config: Config) -> LeftBpf:
    """Return what keeps the flows going while kube-proxy has the new ones."""
    from lbagent.targets.bpf.left_bpf import LeftBpf

    return LeftBpf(config, successor="kube-proxy")


def compared(
    config: Config, settings: RendererSettings, state: State, *, repair: bool
) -> tuple[Sequence[Difference], Sequence[Difference]]:
    """Return in what the pinned maps differ from a State, twice. Raises NotFound, KernelError, and Refused with `repair`."""
    from lbagent.maps.kernel_maps import KernelMaps
    from lbagent.model.family import Family
    from lbagent.model.state import State
    from lbagent.targets.bpf.maps_compared import maps_compared

    if settings.family is not None:
        rows = [svc for svc in state.services if Family.of(svc.frontend.address) is settings.family]
        state = State(state.generation, tuple(rows))
    with KernelMaps.open(config.bpffs, create=False) as maps:
        found = maps_compared(maps, state)
    if found and repair:
        raise AgentUnreachable(
            "only an agent repairs maps: start `lbagent agent` with these manifests; nothing was changed"
        )
    return found, found


def checks() -> tuple[Check[Any], ...]:
    """Return the table of its checks."""
    from lbagent.targets.bpf.checks.bpf_checks import bpf_checks

    return bpf_checks()


def offline_node(config: Config) -> OfflineContext:
    """Return what they read before the start."""
    from lbagent.targets.bpf.checks.offline_context import OfflineContext

    return OfflineContext(config)


def unavailable() -> str:
    """Return why this process cannot use BPF here; '' when it can. It loads one tiny program, which goes again."""
    from lbagent.bpf.load.loader import require_kernel
    from lbagent.kernel import features

    try:
        require_kernel()
    except LbError as error:
        return str(error)
    if number := features.can_load():
        advice = "; run as root" if os.geteuid() else ""
        return f"this process may not load BPF programs: {os.strerror(number)}{advice}"
    return ""
