"""Has the kernel keep the neighbours of backends and gateways resolved, so that no packet meets an unresolved next hop.

From Linux 5.16 the kernel does it by itself (NTF_EXT_MANAGED); before, the agent repeats its requests (NTF_USE). In both cases
the kernel may drop an entry: with the carrier of a device, at `ip neigh flush`, when its table is full. Then the agent requests
it again. Source: net/core/neighbour.c `neigh_add`, `neigh_carrier_down` (behaviour).
"""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from lbagent.iproute import AsyncIPRoute, NetlinkError
from lbagent.model.family import Family
from lbagent.net.netlink_messages import NTF_EXT_MANAGED, NUD_PERMANENT, OUR_PROTOCOL, SOCKET_FAMILY
from lbagent.net.paths import Hop

NTF_USE = 1
NUD_NONE = 0
MAX_MANAGED = 512  # half of the kernel's usual gc_thresh3: never crowd out the stack's own neighbours
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 10.0  # between two requests for a neighbour that the kernel does not keep
ASK_INTERVAL_S = 20.0  # a neighbour requested by NTF_USE stays reachable for at least 15 s and resolved far longer


class KernelNeighbours(msgspec.Struct, frozen=True):
    """The kernel's current neighbours and devices (netlink.py)."""

    resolved: Mapping[Hop, bytes]
    managed: set[
        Hop
    ]  # the keeper adds its requests: for a new entry the kernel sends an event only when it is resolved or failed
    permanent: Collection[Hop]
    carriers: Collection[int]  # devices by which frames can leave


class AskPacer:
    """Limits the requests for a neighbour: the first at once, then after doubling pauses. `now`: seconds of any steady clock."""

    def __init__(self) -> None:
        self._asked: dict[Hop, tuple[float, float]] = {}  # time of the last request, and the pause before the next one

    def due_in(self, hop: Hop, now: float) -> float:
        """Return the seconds until the next request; 0 = now."""
        at, pause = self._asked.get(hop, (now, 0.0))
        return max(0.0, at + pause - now)

    def age(self, hop: Hop, now: float) -> float:
        """Return the seconds since the last request; infinite when there was none."""
        return now - self._asked[hop][0] if hop in self._asked else math.inf

    def ask(self, hop: Hop, now: float) -> None:
        """Record a request. The next pause is twice the last one, unless that is long over."""
        at, pause = self._asked.get(hop, (now, 0.0))
        rested = now - at > LAST_PAUSE_S + pause
        self._asked[hop] = (now, FIRST_PAUSE_S if rested or not pause else min(2 * pause, LAST_PAUSE_S))

    def forget(self, keep: Collection[Hop]) -> None:
        """Remove the neighbours that are not in `keep`: their next request counts as the first."""
        self._asked = {hop: value for hop, value in self._asked.items() if hop in keep}


class RequestedNeighbours(Protocol):
    """The neighbours that this agent requested, kept over a restart (targets/bpf/neighbour_map.py)."""

    def read(self) -> set[Hop]:
        """Return all of them."""

    def add(self, hops: Collection[Hop]) -> None:
        """Add some. Raises KernelError."""

    def remove(self, hops: Collection[Hop]) -> None:
        """Remove some. Raises KernelError."""


class NeighbourKeeper:
    """Sends the kernel requests for the set of wanted neighbours."""

    def __init__(self, requested: RequestedNeighbours) -> None:
        self._requested = requested
        self._kept = requested.read()
        self._pacer = AskPacer()
        self.managed = True
        self._tried = False  # whether the kernel supports NTF_EXT_MANAGED
        self.left_out = 0  # wanted neighbours beyond MAX_MANAGED
        self.table_full = False  # the kernel's table: it refused an entry

    @property
    def kept(self) -> Collection[Hop]:
        """The neighbours that the kernel is requested to keep resolved."""
        return self._kept

    async def keep(self, wanted: Iterable[Hop], kernel: KernelNeighbours, now: float) -> float | None:
        """Keep exactly these resolved, the first ones if they are too many. Raises OSError.

        Configured (permanent) entries are never touched: a request would unset them. Returns the seconds until the next call
        without a change; None: no call is needed.
        """
        wishes = [hop for hop in dict.fromkeys(wanted) if hop not in kernel.permanent]
        self.left_out = max(0, len(wishes) - MAX_MANAGED)
        chosen = wishes[:MAX_MANAGED]
        missing = [hop for hop in chosen if hop[0] in kernel.carriers and not self._is_kept(hop, kernel, now)]
        self._pacer.forget({hop for hop in chosen if hop[0] in kernel.carriers})
        ask = [hop for hop in missing if not self._pacer.due_in(hop, now)]
        release = sorted(self._kept - set(chosen))
        if ask or release or not self._kept >= set(chosen):
            self._own(set(chosen) | self._kept)
            async with AsyncIPRoute() as ipr:
                await self._release(ipr, [hop for hop in release if hop in kernel.managed])
                await self._ask(ipr, ask, kernel, now)
            self._own(set(chosen))
        waits = [self._pacer.due_in(hop, now) for hop in missing]
        if chosen and not self.managed:
            waits.append(ASK_INTERVAL_S / 2)
        return max(min(waits), FIRST_PAUSE_S / 2) if waits else None

    def _is_kept(self, hop: Hop, kernel: KernelNeighbours, now: float) -> bool:
        if self.managed:
            return hop in kernel.managed
        return hop in kernel.resolved and self._pacer.age(hop, now) < ASK_INTERVAL_S

    def _own(self, hops: set[Hop]) -> None:
        """Note the requested neighbours: new ones before the request to the kernel, removed ones after it."""
        self._requested.add(hops - self._kept)
        self._requested.remove(self._kept - hops)
        self._kept = hops

    async def _release(self, ipr: AsyncIPRoute, hops: Sequence[Hop]) -> None:
        for hop in hops:
            await _request(ipr, hop, managed=False)

    async def _ask(self, ipr: AsyncIPRoute, hops: Sequence[Hop], kernel: KernelNeighbours, now: float) -> None:
        self.table_full = self.table_full and not hops
        for hop in hops:
            if await _flags(ipr, hop, "state") & NUD_PERMANENT:
                continue  # its event may still be on the way
            error = await _request(ipr, hop, managed=self.managed)
            if self.managed and not self._tried and error in (0, errno.EINVAL, errno.EOPNOTSUPP):
                self._tried = True  # a kernel without the flag refuses it, or ignores it
                self.managed = bool(await _flags(ipr, hop, "NDA_FLAGS_EXT") & NTF_EXT_MANAGED)
                if not self.managed:
                    error = await _request(ipr, hop, managed=False)
            self.table_full |= error in (errno.ENOBUFS, errno.ENOMEM)
            if self.managed and not error:
                kernel.managed.add(hop)
            self._pacer.ask(hop, now)

    def problems(self) -> list[tuple[str, str, str]]:
        """Return the problems for the operator: subject, problem, what to do."""
        out = []
        if self.left_out:
            text = f"{self.left_out} neighbours of backends and gateways are not kept resolved (limit {MAX_MANAGED})"
            out.append(("limit", text, "the first packet to one that the kernel has forgotten waits for its answer"))
        if self.table_full:
            text = "the kernel's neighbour table is full: next hops cannot be kept resolved"
            out.append(("table", text, "raise net.ipv4.neigh.default.gc_thresh3 and net.ipv6.neigh.default.gc_thresh3"))
        return out


async def _request(ipr: AsyncIPRoute, hop: Hop, *, managed: bool) -> int:
    """Request a neighbour, or (not `managed`) remove that mark. Returns 0 or the errno of the kernel's refusal."""
    ifindex, address = hop
    text = socket.inet_ntop(SOCKET_FAMILY[Family.of(address)], address)
    extra = {"NDA_FLAGS_EXT": NTF_EXT_MANAGED} if managed else {"flags": NTF_USE}
    try:
        await ipr.neigh("replace", dst=text, ifindex=ifindex, state=NUD_NONE, NDA_PROTOCOL=OUR_PROTOCOL, **extra)
    except NetlinkError as error:
        # ENODEV, ENETDOWN and the like: the device is about to go, its event follows
        return int(error.code)
    return 0


async def _flags(ipr: AsyncIPRoute, hop: Hop, name: str) -> int:
    """Return a field or an attribute of a neighbour's entry; 0 when there is none."""
    ifindex, address = hop
    family = SOCKET_FAMILY[Family.of(address)]
    try:
        answer = await ipr.neigh("get", dst=socket.inet_ntop(family, address), ifindex=ifindex, family=family)
    except NetlinkError:
        return 0  # ENOENT: none yet
    out = 0
    for message in answer:
        out |= (message.get_attr(name) if name.startswith("NDA_") else message[name]) or 0
    return out


async def release(hops: Collection[Hop]) -> set[Hop]:
    """Remove the marks of these neighbours (for `cleanup`); the entries age out as usual. Returns those that had one.

    They are not deleted: another agent may need one of them, too, and requests the mark again when it is gone.
    """
    found = set()
    async with AsyncIPRoute() as ipr:
        for hop in sorted(hops):
            if await _flags(ipr, hop, "NDA_FLAGS_EXT") & NTF_EXT_MANAGED:
                await _request(ipr, hop, managed=False)
                found.add(hop)
            elif await _flags(ipr, hop, "NDA_PROTOCOL") == OUR_PROTOCOL:
                found.add(hop)  # requested by NTF_USE
    return found
