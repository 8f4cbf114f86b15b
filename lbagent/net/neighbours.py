"""Asks the kernel to keep the neighbours of backends resolved, so that no packet meets an empty next hop.

From Linux 5.16 the kernel does it by itself (NTF_EXT_MANAGED); before, the agent asks again and again (NTF_USE).
Source: net/core/neighbour.c `neigh_add` (behaviour).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lbagent.model.family import Family
from lbagent.net.netlink_messages import SOCKET_FAMILY
from lbagent.net.paths import Hop

NTF_USE = 1
NTF_EXT_MANAGED = 1
NUD_NONE = 0
NUD_PERMANENT = 0x80
OUR_PROTOCOL = 76  # marks the entries we asked for (`ip -d neigh`: proto 76); `cleanup` finds them by it
MAX_MANAGED = 512  # half of the kernel's usual gc_thresh3: never crowd out the stack's own neighbours


class NeighbourKeeper:
    """Follows the set of wanted neighbours with requests to the kernel."""

    def __init__(self) -> None:
        self._kept: set[Hop] = set()
        self.managed = True
        self.left_out = 0

    async def keep(self, wanted: Iterable[Hop], permanent: Iterable[Hop]) -> None:
        """Make exactly these resolved. Configured (permanent) entries are never touched: asking would unset them."""
        wanted = sorted(set(wanted) - set(permanent))
        self.left_out = max(0, len(wanted) - MAX_MANAGED)
        chosen = set(wanted[:MAX_MANAGED])
        ask = chosen - self._kept if self.managed else chosen
        if not ask and chosen == self._kept:
            return
        async with AsyncIPRoute() as ipr:
            for hop in sorted(self._kept - chosen):
                await self._request(ipr, hop, managed=False)
            for hop in sorted(ask):
                if not await _configured(ipr, hop):
                    await self._request(ipr, hop, managed=self.managed)
        self._kept = chosen

    async def _request(self, ipr: AsyncIPRoute, hop: Hop, *, managed: bool) -> None:
        ifindex, address = hop
        text = socket.inet_ntop(SOCKET_FAMILY[Family.of(address)], address)
        extra = {"NDA_FLAGS_EXT": NTF_EXT_MANAGED} if managed else {"flags": NTF_USE}
        try:
            await ipr.neigh("replace", dst=text, ifindex=ifindex, state=NUD_NONE, NDA_PROTOCOL=OUR_PROTOCOL, **extra)
        except NetlinkError as error:
            if managed and error.code in (errno.EINVAL, errno.EOPNOTSUPP):
                self.managed = False
                await self._request(ipr, hop, managed=False)
            # ENODEV, ENETDOWN and the like: the device is going, its event follows


async def _configured(ipr: AsyncIPRoute, hop: Hop) -> bool:
    """Ask the kernel whether the entry is permanent now: its event may still be on the way."""
    ifindex, address = hop
    family = SOCKET_FAMILY[Family.of(address)]
    try:
        answer = await ipr.neigh("get", dst=socket.inet_ntop(family, address), ifindex=ifindex, family=family)
    except NetlinkError:
        return False  # ENOENT: none yet
    return any(message["state"] & NUD_PERMANENT for message in answer)


async def release_all() -> int:
    """Take the marks of an earlier agent away (for `cleanup`); the entries age out as any other. Returns how many."""
    count = 0
    async with AsyncIPRoute() as ipr:
        for family in SOCKET_FAMILY.values():
            async for message in await ipr.get_neighbours(family=family):
                if message.get_attr("NDA_PROTOCOL") == OUR_PROTOCOL:
                    await ipr.neigh("del", dst=message.get_attr("NDA_DST"), ifindex=message["ifindex"])
                    count += 1
    return count
