"""Removes the programs, links, pins and marked neighbours of an agent. Works without an agent, and after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

from lbagent.bpf.load import attach, clsact
from lbagent.errors import ConfigError, LbError
from lbagent.kernel.bpffs import is_bpffs
from lbagent.kernel.kernel_error import kernel_error
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import L7_MARK
from lbagent.maps.pins import pin_dir
from lbagent.model.address import format_ip
from lbagent.net import neighbours, proxy_route
from lbagent.net.namespace_devices import are_here
from lbagent.net.paths import Hop
from lbagent.targets.bpf import vip_map
from lbagent.targets.bpf.lock import AgentLock
from lbagent.targets.bpf.neighbour_map import NeighbourMap
from lbagent.targets.bpf.nexthop import device_macs
from lbagent.targets.bpf.pin_removal import remove_pins
from lbagent.targets.data_plane import DeviceAddress

MOST_NAMED = 8  # neighbours


def remove(bpffs: str, before: Callable[[], None]) -> list[str]:
    """Remove everything an agent left under `bpffs`, and return it, one line each; nothing there is fine.

    `before` is called when the lock is held, before anything is removed, and only where pins are: without them another agent may
    run. Programs go before maps, so that no packet meets half of it. Raises Conflict while an agent runs, ConfigError for a folder
    of ordinary files, KernelError.
    """
    root = pin_dir(bpffs)
    try:
        present = root.is_dir()
    except PermissionError as error:
        raise kernel_error("read", error.errno or 0, str(root)) from None
    if not present:
        return []
    if not is_bpffs(root):
        raise ConfigError(f"--bpffs {bpffs}: {root} is not on a bpf file system; nothing was removed")
    lock = AgentLock(root)
    lock.take()
    try:
        before()
        return remove_held(lock, root)
    finally:
        lock.release()


def remove_held(lock: AgentLock, root: Path) -> list[str]:
    """Do the same under a lock that the caller holds, and releases. Blocks."""
    assert lock.is_held
    hops, devices, filters = _owned_neighbours(root), attach.attached_indexes(root), clsact.marked_indexes(root)
    is_elsewhere = bool(devices) and not are_here(devices, _macs(root))
    announced = _announced(root)
    gone = remove_pins(root)
    vip_map.release(announced)
    released = asyncio.run(neighbours.release(hops)) if hops else set()
    if released:
        gone.append(f"released {len(released)} neighbours")
    if asyncio.run(proxy_route.remove(L7_MARK)):
        gone.append(f"removed the rule and the route of mark {L7_MARK:#x}")
    if is_elsewhere:
        gone += _left_elsewhere(hops - released, devices, filters)
    return gone


def _macs(root: Path) -> dict[int, bytes]:
    """Return the MAC addresses of devices as the next hops of the agent have them, by index."""
    try:
        with KernelMaps.open(root.parent, create=False) as maps:
            return device_macs(maps)
    except LbError:
        return {}


def _left_elsewhere(hops: Collection[Hop], devices: Collection[str], filters: Collection[str]) -> list[str]:
    """Say what stays where the agent's devices are, as they are not in this network namespace."""
    where = f"in the network namespace of {', '.join(sorted(devices)) or 'the agent'}, which is not this one"
    out = []
    if filters:
        what = f"left the tc filters on {', '.join(sorted(filters))} {where}"
        out.append(f"{what}: `tc qdisc del dev DEVICE clsact` there removes them")
    if hops:
        named = sorted(format_ip(address) for _, address in hops)
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        what = f"left {len(hops)} neighbours {where}; the kernel keeps asking for {', '.join(named[:MOST_NAMED])}{more}"
        out.append(f"{what}: `ip neigh del ADDRESS dev DEVICE` there ends that")
    return out


def _owned_neighbours(root: Path) -> set[Hop]:
    """Return the neighbours that the agent of these pins asked for: another agent's are not ours to release."""
    try:
        with KernelMaps.open(root.parent, create=False) as maps:
            return NeighbourMap(maps).read()
    except LbError:  # pins that are incomplete, or of another schema: what can be removed is removed
        return set()


def _announced(root: Path) -> dict[DeviceAddress, bytes]:
    """Return the addresses that the agent of these pins announces, by device."""
    try:
        with KernelMaps.open(root.parent, create=False) as maps:
            return vip_map.read(maps)
    except LbError:
        return {}
