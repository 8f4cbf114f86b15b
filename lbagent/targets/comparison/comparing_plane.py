"""ComparingPlane: the data plane of `--shadow`. It puts nothing in force, and compares what another proxy does with each State."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from lbagent.config import Config
from lbagent.errors import Unsupported
from lbagent.net.paths import is_pod_device
from lbagent.net.snapshot import NodeNetwork
from lbagent.sync.target_protocol import Desired
from lbagent.targets.comparison.compared_flows import ComparedFlows
from lbagent.targets.comparison.conntrack_events import ConntrackEvents
from lbagent.targets.comparison.expected_backends import ExpectedBackends
from lbagent.targets.plain_plane import PlainPlane

READ_INTERVAL_S = 0.05  # the kernel keeps the messages meanwhile
MOST_AT_ONCE = 256  # messages between two turns of the event loop
MOST_CLIENTS = 4096  # whose place is remembered
MOST_TURNS = 64  # of a reading: in a flood the rest is lost, and counted as lost


class ComparingPlane(PlainPlane):
    """Follows new connections of the node."""

    name = "shadow"
    compared: ComparedFlows

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.taking_over: Callable[[], str] = lambda: ""  # from which data plane the proxy does, for the status

    def share_with_bpf(self, snat_ports: tuple[int, int] | None) -> None:
        """The proxy has source ports of its own."""

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Subscribe to new connections. Raises Unsupported."""
        require()
        self.compared = ComparedFlows()
        self._expected = ExpectedBackends(self._is_inside)
        self._pods: frozenset[int] = frozenset()
        self._inside: dict[bytes, bool] = {}  # answers of `_is_inside` for this network
        try:
            self._events = ConntrackEvents()
        except OSError as error:
            raise ShadowUnavailable(
                f"the kernel reports no new connections to this process: {error.strerror}"
            ) from error
        return {}

    def close(self) -> None:
        """Close the socket."""
        if hasattr(self, "_events"):
            self._events.close()

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Follow the network and the connections."""
        await super().start(group)
        group.create_task(self._follow_connections())

    async def write(self, desired: Desired) -> None:
        """Compare with this State from now on."""
        self._expected.take(desired.state, time.monotonic())

    def _network_changed(self, network: NodeNetwork) -> None:
        self._pods = frozenset(
            link.index for link in network.links.values() if is_pod_device(link.name, self.config.pod_device)
        )
        self._inside.clear()
        super()._network_changed(network)

    def _is_inside(self, address: bytes) -> bool:
        """Return whether an address is the node's own or a Pod's on it."""
        known = self._inside.get(address)
        if known is None:
            if len(self._inside) >= MOST_CLIENTS:
                self._inside.clear()
            known = self._inside[address] = self._look(address)
        return known

    def _look(self, address: bytes) -> bool:
        network = self.network
        if network.is_own(address):
            return True
        route = network.route(address)
        return route is not None and route.ifindex in self._pods

    async def _follow_connections(self) -> None:
        while True:
            await asyncio.sleep(READ_INTERVAL_S)
            if not self.ready.is_set():
                for _ in self._events.read(MOST_AT_ONCE):
                    pass
                continue
            for _ in range(MOST_TURNS):
                if not self._read():
                    break
                await asyncio.sleep(0)

    def _read(self) -> bool:
        """Take what has come; return whether there may be more."""
        now, number = time.monotonic(), 0
        for new in self._events.read(MOST_AT_ONCE):
            number += 1
            if new is None:
                self.compared.lose()
            else:
                self.compared.add(new, self._expected, now)
        return number >= MOST_AT_ONCE

    def problems(self) -> Sequence[str]:
        """Return from which data plane the proxy takes over, and whether connections were lost."""
        found = [text] if (text := self.taking_over()) else []
        if lost := self.compared.lost:
            found.append(
                f"messages about new connections were lost {lost} times: these are not in `lbagent shadow report`"
            )
        return found


class ShadowUnavailable(Unsupported):
    """Why --shadow cannot be used here, with exit code 77."""

    def __init__(self, reason: str) -> None:
        super().__init__("shadow")
        self.args = (f"--shadow is not available: {reason}",)
