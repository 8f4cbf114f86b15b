"""What the BPF data plane shows: devices, ways to backends, counters, flows; read on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from lbagent.bpf.hooks import AttachPointKind
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.run.sweep import Sweeper
from lbagent.config import Config
from lbagent.config.device_names import ChosenDevices
from lbagent.maps import backend_tcp, flow_reader
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.event_map import event_counts
from lbagent.maps.flow_layout import ForwardMode
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import PathL4
from lbagent.maps.lbmaps import LBMaps, backend_counter, service_counter
from lbagent.maps.map_names import family_map
from lbagent.maps.reasons import Event, Reason, label
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import Backend
from lbagent.model.extra_snat_sources import ExtraSnatSources
from lbagent.model.family import Family
from lbagent.model.handshakes import Handshakes
from lbagent.net.paths import NO_OUTPUT
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.device_keeper import DeviceKeeper, cgroup_hooks
from lbagent.targets.bpf.network_follower import NetworkFollower
from lbagent.targets.bpf.xdp_output import Egress, egress_by
from lbagent.targets.data_plane import (
    CgroupStatus,
    Counters,
    DeviceStatus,
    EgressOf,
    EgressPath,
    Flow,
    OutputStatus,
    PlaneStatus,
    Traffic,
    Usage,
    sessions_of,
)

_REASONS = [reason for reason in Reason if reason]
_LABELS = [label(reason) for reason in _REASONS]
_PROTOCOLS = {l4: L4Type[l4.name] for l4 in PathL4}
_MODES = {mode.value: mode.name.lower() for mode in ForwardMode}


class PlaneParts(Protocol):
    """What is read of the data plane (bpf_plane.py)."""

    config: Config
    maps: KernelMaps
    target: BpfTarget
    follower: NetworkFollower
    datapath: Datapath | None
    devices: DeviceKeeper | None
    sweeper: Sweeper | None
    extra_snat: ExtraSnatSources
    reply_ports: tuple[int, int]

    def usage(self) -> dict[str, Usage]:
        """Return (entries in use, most entries) of each map that is counted."""

    def extra_snat_in_use(self) -> dict[Family, int]:
        """Return the addresses of --snat-address that the node has, by family."""


def status(plane: PlaneParts) -> PlaneStatus:
    """Return what `lbagent status` shows; of the maps also what an earlier agent left."""
    usage, config = plane.usage(), plane.config
    return PlaneStatus(
        frontends=plane.target.frontends,
        backends=sum(usage[family_map(family, "backend")][0] for family in Family),
        attach=config.attach,
        bpffs=config.bpffs,
        artifact=plane.datapath.key if plane.datapath else "",
        sweeps=plane.sweeper.sweeps if plane.sweeper else 0,
        devices=_devices(plane),
        cgroups=[CgroupStatus(path, hooks) for path, hooks in cgroup_hooks(plane.devices).items()],
        outputs=_outputs(plane),
        usage=usage,
    )


def _devices(plane: PlaneParts) -> list[DeviceStatus]:
    keeper = plane.devices
    if keeper is None:
        return []
    hooks: dict[str, list[str]] = {name: [] for name in (*keeper.chosen.names, *keeper.chosen.missing)}
    for attachment in keeper.attached:
        if attachment in keeper.lost or attachment.target.kind is not AttachPointKind.DEVICE:
            continue
        hooks.setdefault(attachment.target.name, []).append(str(attachment.hook))
    out = []
    for name, words in hooks.items():
        link = plane.follower.network.by_name(name)
        out.append(DeviceStatus(name, link.index if link else 0, words, keeper.problems.get(name, "")))
    return out


def devices_attached(plane: PlaneParts) -> dict[str, bool]:
    """Return whether each device takes traffic; a pattern that matches none is no device."""
    chosen = plane.devices.chosen if plane.devices else ChosenDevices((), {})
    left_out = chosen.missing.keys() - chosen.faults
    devices = (device for device in _devices(plane) if device.name not in left_out)
    return {device.name: bool(device.hooks) and not device.problem for device in devices}


def _outputs(plane: PlaneParts) -> list[OutputStatus]:
    """Return how packets leave to remote backends, by device."""
    follower, xdp = plane.follower, _xdp_in_use(plane)
    out = []
    for index in sorted(follower.finder.outputs):
        link = follower.network.links.get(index)
        if link is not None:
            way, why = egress_by(index, follower.refusing, xdp=xdp)
            out.append(OutputStatus(link.name, link.kind, way, why))
    return out


def _xdp_in_use(plane: PlaneParts) -> bool:
    return plane.devices is not None and any(item.hook.xdp_mode for item in plane.devices.attached)


def egress_paths(plane: PlaneParts) -> EgressOf:
    """Return a function that returns how packets get to a backend: one answer for each device."""
    follower, xdp = plane.follower, _xdp_in_use(plane)
    known = {NO_OUTPUT: EgressPath(Egress.STACK)}

    def egress_of(backend: Backend) -> EgressPath:
        index = follower.finder.output(backend)
        if index is None:
            return EgressPath()
        if index not in known:
            way, why = egress_by(index, follower.refusing, xdp=xdp)
            link = follower.network.links.get(index)
            known[index] = EgressPath(way, link.name if link else "", why)
        return known[index]

    return egress_of


def counters(plane: PlaneParts, *, backends: bool) -> Counters:
    """Return what the programs counted; without `backends` nothing of single backends."""
    state, read = plane.target.state, plane.maps.counters
    services = [svc.id for svc in state.services if svc.id]
    idents = [backend.id for backend in state.backends.values()] if backends else []
    first, last = plane.config.snat_port_range
    return Counters(
        reasons=dict(zip(_LABELS, read(_REASONS), strict=True)),
        services=dict(zip(services, read([service_counter(ident) for ident in services]), strict=True)),
        backends=_of_backends(plane, idents),
        live_flows={} if not idents or not plane.sweeper else plane.sweeper.live or {},
        sessions=sessions_of(state, plane.sweeper.live if plane.sweeper else None),
        send_errors=plane.follower.send_errors(),
        snat_ports=last - first + 1,
        snat_addresses=plane.extra_snat_in_use(),
        handshakes=handshakes(plane, idents),
        new_flows=dict(zip(services, backend_tcp.read_new_flows(plane.maps, services), strict=True)),
        snat_use=_snat_use(plane, last - first + 1),
        stale_backends=len(plane.target.stale),
        stale_backends_evicted=plane.target.stale.evicted,
        snat_reclaimed=read([Event.SNAT_RECLAIMED])[0][0],
        events=event_counts(rings) if (rings := plane.maps.fds.get(EVENT_MAP)) is not None else (0, 0),
    )


def _of_backends(plane: PlaneParts, backends: Iterable[int]) -> dict[int, Traffic]:
    """Return packets and bytes of backends, by any source address of the node."""
    ids = [(backend, ident) for backend in backends for ident in plane.target.counter_ids(backend)]
    read = plane.maps.counters([backend_counter(ident) for _, ident in ids])
    out: dict[int, Traffic] = {}
    for (backend, _), (packets, size) in zip(ids, read, strict=True):
        before = out.get(backend, (0, 0))
        out[backend] = (before[0] + packets, before[1] + size)
    return out


def handshakes(plane: PlaneParts, backends: Sequence[int]) -> dict[int, Handshakes]:
    """Return the timed handshakes of backend ids, by any source address of the node. Raises KernelError.

    Ids of another data plane (joined_plane.py) are beyond those of the maps, and have none.
    """
    own = [backend for backend in backends if backend < plane.maps.sizes.backends]
    ids = [(backend, ident) for backend in own for ident in plane.target.counter_ids(backend)]
    out: dict[int, Handshakes] = {}
    for (backend, _), found in zip(ids, backend_tcp.read_handshakes(plane.maps, [i for _, i in ids]), strict=True):
        if found.any or found.failing:
            out[backend] = out[backend].plus(found) if backend in out else found
    return out


def _snat_use(plane: PlaneParts, ports: int) -> float | None:
    """Return how much of its SNAT ports the fullest backend uses, by the last sweep. Pods that keep their address count, too."""
    held = plane.sweeper.held if plane.sweeper else None
    if held is None:
        return None
    remote = (backend for backend in plane.target.state.backends.values() if not backend.local and backend.id in held)
    extra = plane.extra_snat_in_use()
    return max((held[each.id] / (ports * (1 + extra[each.address.family])) for each in remote), default=0.0)


def flows(maps: LBMaps, target: BpfTarget) -> Iterator[Sequence[Flow]]:
    """Yield the flows of both families, those of a piece of a table at a time. Raises KernelError."""
    backends = {
        ident: backend.address for backend in target.state.backends.values() for ident in target.counter_ids(backend.id)
    }
    for family in Family:
        for piece in flow_reader.flows(maps, family):
            yield [
                Flow(
                    L3n4Addr(flow.client, flow.client_port, _PROTOCOLS[flow.l4]),
                    L3n4Addr(flow.vip, flow.vip_port, _PROTOCOLS[flow.l4]),
                    backends.get(flow.backend),
                    flow.state.name.lower(),
                    _MODES.get(flow.mode, str(flow.mode)),
                    flow.snat_port,
                )
                for flow in piece
            ]
