"""The previous leader of an address: it has the flows of the connections that were open then. Pure.

The programs forward segments of unknown connections to it (bpf/include/forward/former_leader.h). It is the node
that answered the last probes, so it runs, though its agent may not; a node that died answers none, and nothing is sent to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from lbagent.targets.data_plane import DeviceAddress

MAX_SIGHTING_AGE_S = (
    3.0  # time between its last answer and this node's start: two rounds of probes, and the write of a Lease
)


class FormerLeaders:
    """The MAC address of the former leader by device and address; `now` is seconds of one steady clock."""

    def __init__(self) -> None:
        self._seen: dict[DeviceAddress, tuple[bytes, float]] = {}
        self._former: dict[DeviceAddress, tuple[bytes, float]] = {}  # with the time until which it counts as alive

    def take_over(self, places: Mapping[DeviceAddress, bytes], until: float) -> None:
        """Restore what an earlier agent wrote."""
        self._former = {place: (mac, until) for place, mac in places.items()}

    def seen(self, place: DeviceAddress, mac: bytes, now: float) -> None:
        """Record that another node answers for an address that this one is about to announce."""
        self._seen[place] = (mac, now)

    def start(self, address: bytes, now: float, grace_s: float) -> None:
        """Record that this node leads for an address."""
        seen = {place: found for place, found in self._seen.items() if place[1] == address}
        self.end(address)
        for place, (mac, at) in seen.items():
            if now - at <= MAX_SIGHTING_AGE_S:
                self._former[place] = (mac, now + grace_s)

    def end(self, address: bytes) -> None:
        """Record that this node does not lead for an address any more."""
        for known in (self._seen, self._former):
            for place in [place for place in known if place[1] == address]:
                del known[place]

    def wanted(
        self, answers: Collection[DeviceAddress], now: float, grace_s: float, lives: Callable[[bytes], bool]
    ) -> dict[DeviceAddress, bytes]:
        """Return the previous leaders that the programs need while they answer for `answers`.

        `lives`: whether the node with a MAC address has a valid Lease; a node whose Lease expired is kept for `grace_s`.
        """
        for place, (mac, until) in list(self._former.items()):
            if lives(mac):
                self._former[place] = (mac, now + grace_s)
            elif now >= until:
                del self._former[place]
        return {place: mac for place, (mac, _) in self._former.items() if place in answers}

    def of(self, address: bytes) -> list[bytes]:
        """Return the MAC addresses of the former leader of an address."""
        return [mac for (_, known), (mac, _) in self._former.items() if known == address]
