"""RendererPlane: a ServiceRenderer as a data plane. It makes the calls, and keeps what the agent shows.

A call that raises or does not return in time ends the pass: the runner tries again with growing pauses, and the first call is
`resync` then. Every minute `verify` compares the system with what is in force; a difference is repaired by a resync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar

from lbagent.config import Config
from lbagent.config.device_names import AUTO, choose_devices
from lbagent.errors import ConfigError, LbError
from lbagent.model.address import parse_ip
from lbagent.model.family import Family
from lbagent.net.devices_present import devices_present
from lbagent.net.snapshot import EMPTY, NodeNetwork
from lbagent.render.renderer_names import RendererError, Unavailable, capabilities_of, make_renderer
from lbagent.render.renderer_thread import CALL_TIMEOUT_S, RendererThread
from lbagent.render.renderer_types import Difference, Interfaces
from lbagent.render.service_calls import Surroundings, View
from lbagent.render.service_renderer import HOST_PORTS, NEEDS_NODES, TRANSLATES, Factory, ServiceRenderer
from lbagent.render.shared_calls import BurstReader, SharedCalls
from lbagent.sync.target_protocol import Desired
from lbagent.targets.data_plane import Feature
from lbagent.targets.plain_plane import PlainPlane

if TYPE_CHECKING:
    from lbagent.net.netlink import NetworkWatcher

log = logging.getLogger(__name__)
VERIFY_INTERVAL_S = 60.0
START_WAIT_S = 2.0  # for a renderer beside others: the agent does not wait longer
_T = TypeVar("_T")


class NodeSurroundings:
    """Follows the node's network for all renderers, and gives them the interfaces of clients and of Pods."""

    def __init__(self, config: Config, calls: SharedCalls) -> None:
        self.network: NodeNetwork = EMPTY
        self.followers: list[Callable[[NodeNetwork], None]] = []
        self._config = config
        self._calls = calls
        self._watcher: NetworkWatcher | None = None
        self._is_followed = False
        self._known: tuple[object, ...] = ()

    async def open(self) -> None:
        """Read the network for the first time. Raises KernelError."""
        if self._watcher is None:
            from lbagent.net.netlink import NetworkWatcher

            self._watcher = NetworkWatcher()
            self._take(await self._watcher.start())

    def follow(self, group: asyncio.TaskGroup) -> None:
        """Follow the network, in one task whatever the number of renderers."""
        if not self._is_followed and self._watcher is not None:
            self._is_followed = True
            group.create_task(self._run(self._watcher))

    async def _run(self, watcher: NetworkWatcher) -> None:
        try:
            await watcher.run(self._take)
        finally:
            watcher.close()

    def reconfigure(self, config: Config) -> None:
        """Take over a configuration."""
        self._config, self._known = config, ()
        self._take(self.network)

    def _take(self, network: NodeNetwork) -> None:
        self.network = network
        known = (network.links, network.routes4, network.routes6, network.own4, network.own6)
        if len(known) != len(self._known) or not all(map(is_, known, self._known)):
            self._known = known
            self._calls.set_surroundings(Surroundings(Interfaces(*self._frontend_devices()), self._device_of))
        for follower in self.followers:
            follower(network)

    def _frontend_devices(self) -> Iterable[str]:
        """Return the devices of --device; without it, those of the default routes."""
        config = self._config
        return choose_devices(config.device or (AUTO,), devices_present(self.network), config.pod_device).names

    def _device_of(self, address: str) -> str:
        """Return the device by which this node reaches a Pod of its own, '' where there is no route to it."""
        network, packed = self.network, parse_ip(address)
        route = None if network.is_own(packed) else network.route(packed)
        link = network.links.get(route.ifindex) if route is not None else None
        return link.name if link is not None else ""


class RendererPlane(PlainPlane):
    """Drives one renderer. `factory` is called in the renderer's own thread: importing a plug-in runs its code."""

    needs_facts = True

    def __init__(
        self,
        config: Config,
        name: str,
        factory: Callable[[], Factory],
        settings: Mapping[str, str],
        calls: SharedCalls,
        surroundings: NodeSurroundings,
        *,
        must_work: bool = True,
        family: Family | None = None,
        on_translates: Callable[[], None] = lambda: None,
    ) -> None:
        """`must_work`: `open` raises what keeps the renderer from being made; else it is tried again.

        `on_translates` is called for a renderer that rewrites packets of Services; it raises ConfigError where it must not.
        """
        super().__init__(config)
        self.name = name
        self._factory, self._settings = factory, settings
        self._shared, self._surroundings = calls, surroundings
        self._must_work, self._family, self._on_translates = must_work, family, on_translates
        self._thread = RendererThread(name)
        self._renderer: ServiceRenderer | None = None
        self._reader: BurstReader | None = None
        self._desired: Desired | None = None  # in force
        self._busy = asyncio.Lock()  # one call at a time
        self._verifying: asyncio.Task[None] | None = None
        calls.follow(self.wake_up)

    def wake_up(self) -> None:
        """Have `reconcile` called with the last State, once there is one."""
        if self._reader is not None and self._reader.log.number:
            self.wake.set()

    # --- life ---

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Make the renderer. Raises ConfigError for its settings, Unavailable."""
        require()
        self._surroundings.followers.append(self._network_changed)
        await self._surroundings.open()
        self._network_changed(self._surroundings.network)
        try:
            await self._made(CALL_TIMEOUT_S if self._must_work else START_WAIT_S)
        except (LbError, OSError) as error:
            if isinstance(error, ConfigError) or self._must_work:
                raise _unavailable(self.name, error) from None
            log.error("a renderer cannot be used", extra={"renderer": self.name, "error": str(error)})
            self.error = str(error)
        return {}

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Follow the node's network."""
        self._surroundings.follow(group)

    async def _made(self, timeout_s: float) -> None:
        if self._renderer is None:

            async def make() -> tuple[ServiceRenderer, frozenset[str]]:
                made = make_renderer(self.name, self._factory(), self._settings)
                return made, capabilities_of(self.name, made)

            renderer, words = await self._thread.call("the factory", make, timeout_s)
            if TRANSLATES in words:
                self._on_translates()
            self._renderer = renderer
            self.features = frozenset(Feature(word) for word in words & {each.value for each in Feature})
            self._reader = self._shared.log(View(NEEDS_NODES in words, HOST_PORTS in words, self._family)).reader()
            self.error = ""

    async def reconfigure(self, config: Config) -> dict[str, str]:
        """Take over a configuration: --device may name other interfaces of clients."""
        self._surroundings.reconfigure(config)
        return await super().reconfigure(config)

    def close(self) -> None:
        """Let go of the renderer; what is in force stays."""
        renderer = self._renderer
        if renderer is not None:
            try:
                self._thread.call_blocking("close", lambda: renderer.close(keep=True))
            except (LbError, OSError) as error:
                log.warning("a renderer did not close", extra={"renderer": self.name, "error": str(error)})
        self._thread.stop()

    # --- the State ---

    async def reconcile(self, desired: Desired) -> None:
        """Make the calls; then give the rows ids. Raises LbError, OSError: the next call is a resync."""
        if self._reader is None:
            self.error = ""  # the runner has it
            await self._made(CALL_TIMEOUT_S)
            self.wake.set()  # meanwhile there may be a later State
            return
        self._shared.update(self._reader.log, desired)  # before any wait: another renderer may have a later one then
        await self._render(self._reader)
        if desired is not self._desired:
            await super().reconcile(desired)
            self._desired = desired

    async def _render(self, reader: BurstReader) -> None:
        if self._verifying is not None:
            self._verifying.cancel()
        async with self._busy:
            try:
                for burst in reader.next_bursts():
                    for call in burst.calls:
                        await self._call(call.name, call.apply)
                        self.counts.writes += 1
                    reader.made(burst)
            except BaseException:  # also when this task is cancelled: it is not known how far the renderer is
                reader.lose()
                self.counts.errors += 1
                raise

    async def _call(self, what: str, make: Callable[[ServiceRenderer], Awaitable[_T]]) -> _T:
        renderer = self._renderer
        assert renderer is not None
        return await self._thread.call(what, lambda: make(renderer), CALL_TIMEOUT_S)

    async def watch(self) -> None:
        """Follow the network where the agent does not, and verify now and then."""
        async with asyncio.TaskGroup() as group:
            self._surroundings.follow(group)
            while True:
                await asyncio.sleep(VERIFY_INTERVAL_S)
                self._verifying = asyncio.create_task(self._repair())
                await asyncio.wait({self._verifying})
                self._verifying = None

    async def _repair(self) -> None:
        """Have everything written again where something differs. A State that comes meanwhile ends it."""
        with suppress(LbError, OSError):
            if found := await self.repair():
                facts = {"renderer": self.name, "differences": len(found), "first": str(found[0])}
                log.warning("a renderer repairs what another program changed", extra=facts)

    def request_resync(self) -> None:
        """Have everything written again."""
        if self._reader is not None:
            self._reader.lose()
        self.wake_up()

    async def find_differences(self) -> Sequence[Difference]:
        """Return in what the system differs from what is in force. Raises LbError, OSError."""
        reader = self._reader
        if reader is None or not reader.number:
            return ()
        async with self._busy:
            snapshot = reader.log.snapshot()
            found: Any = await self._call("verify", lambda renderer: renderer.verify(snapshot))
        if not isinstance(found, (list, tuple)) or not all(isinstance(each, Difference) for each in found):
            raise RendererError(f"renderer {self.name}: verify returned {found!r:.80}, no list of Difference")
        self.difference_count = len(found)
        return tuple(found)

    async def verify(self) -> Sequence[Difference]:
        """Return in what the system differs from what is in force. Raises LbError, OSError."""
        return await self.find_differences()

    async def repair(self) -> Sequence[Difference]:
        """Have everything written again where something differs."""
        if found := await self.find_differences():
            self.request_resync()
        return found


def _unavailable(name: str, error: LbError | OSError) -> LbError:
    return error if isinstance(error, (ConfigError, Unavailable)) else Unavailable(name, str(error))
