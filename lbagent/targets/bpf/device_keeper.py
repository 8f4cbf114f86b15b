"""Keeps programs on the configured devices: attaches at start, follows devices that come, go or change their address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from lbagent.bpf.hooks import INGRESS_MODES, XDP, AttachPointKind, Hook
from lbagent.bpf.load.attach import Attachment, wanted_attachments
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.load.devices import devices, no_such_device
from lbagent.config import Config
from lbagent.config.device_names import ChosenDevices, choose_devices, is_name
from lbagent.errors import LbError, NotFound
from lbagent.maps.lbmaps import LBMaps
from lbagent.net.devices_present import devices_present
from lbagent.net.paths import ETHERNET_ADDRESS
from lbagent.net.snapshot import Link, NodeNetwork
from lbagent.targets.bpf.bpf_settings import socket_cgroup
from lbagent.targets.bpf.device_table import stacked_devices, write_devices
from lbagent.targets.bpf.xdp_output import refusing_devices

log = logging.getLogger(__name__)
ATTACH_RETRY_DELAY_S = 5.0
Wanted = dict[int, tuple[Link, bool]]  # ifindex -> device, behind it live pods
Refusing = Callable[[NodeNetwork, frozenset[int]], Mapping[int, str]]  # xdp_output.py: which devices, and why


class DeviceKeeper:
    """Owner of lb_device and of what is attached. `problems` maps a device's name to a sentence."""

    def __init__(self, maps: LBMaps, datapath: Datapath, config: Config) -> None:
        self._maps = maps
        self._datapath = datapath
        self.config = config
        self.attached: tuple[Attachment, ...] = ()
        self.problems: dict[str, str] = {}
        self.lost: frozenset[Attachment] = frozenset()  # of `attached`: in force no more, and could not be made again
        self.last_index: dict[str, int] = {}  # of each configured device that was there once
        self.chosen = ChosenDevices((), {})
        self.renamed: dict[str, Link] = {}  # by the name that --device gives
        self._default_routes: set[str] = set()  # devices that have, or had, a default route
        self._done: tuple[Wanted, Config] | None = None
        self._written: tuple[Wanted, dict[int, Link], frozenset[int]] | None = None
        self._left_out: list[str] = []
        self.refusing_of: Refusing = refusing_devices
        self.on_attached: Callable[[frozenset[int], frozenset[int]], None] = lambda _devices, _native: None
        self._changed = asyncio.Event()
        self._network: NodeNetwork | None = None
        self.busy = asyncio.Lock()  # held while programs or devices change

    async def start(self, network: NodeNetwork) -> None:
        """Attach to everything configured that is there. Raises NotFound, Conflict, Unsupported, KernelError."""
        self.last_index |= self._datapath.attached_devices()
        require_devices(network, self.config, self._renamed(network, self.config.device))
        self._network = network
        try:
            await self._attach(network)
        except NotFound as error:  # a device went in this moment: `run` continues
            self.problems["devices"] = str(error)
            self._changed.set()

    def follow(self, network: NodeNetwork) -> None:
        """Take a new snapshot of the network."""
        self._network = network
        self._changed.set()

    async def reconfigure(self, config: Config) -> None:
        """Attach by the new configuration. Raises as `start`; then what was attached stays."""
        if self._network is not None:
            require_devices(self._network, config, self.config.device)
        old, self.config = self.config, config
        try:
            if self._network is not None:
                await self._attach(self._network)
        except LbError:
            self.config = old
            raise

    async def run(self) -> None:
        """Follow devices; what fails is tried again."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._network is None:
                continue
            try:
                await self._attach(self._network)
            except LbError as error:
                self.problems["devices"] = str(error)
                log.error(
                    "programs could not be attached", extra={"error": str(error), "retry_s": ATTACH_RETRY_DELAY_S}
                )
                await asyncio.sleep(ATTACH_RETRY_DELAY_S)
                self._done = None
                self._changed.set()

    async def attach_again(self) -> None:
        """Attach what is not attached any more, though no device changed. Raises as `start`."""
        self._done = None
        if self._network is not None:
            await self._attach(self._network)

    def announcing_devices(self) -> frozenset[str]:
        """Return the devices whose programs answer for announced addresses, by name."""
        return frozenset(
            item.target.name
            for item in self.attached
            if item not in self.lost
            and item.target.kind is AttachPointKind.DEVICE
            and item.hook in INGRESS_MODES.values()
        )

    async def _attach(self, network: NodeNetwork) -> None:
        async with self.busy:
            config = self.config
            chosen = self._choose(network, config)
            wanted = wanted_devices(network, chosen.names, config.pod_device)
            wanted |= {link.index: (link, False) for link in self.renamed.values()}
            self._write(network, wanted, chosen.names)
            if self._done == (wanted, config):
                return
            self.last_index |= {link.name: link.index for link, is_pod in wanted.values() if not is_pod}
            cgroup = socket_cgroup(config)
            hooks = await asyncio.to_thread(
                self._datapath.attach, config.attach, chosen.names, config.pod_device, cgroup
            )
            before, self.attached = self.attached, tuple(hooks)
            self.chosen, self.problems = chosen, dict(chosen.missing)
            self.problems |= {name: f"map lb_device has no room for device {name}" for name in self._left_out}
            self._done = (wanted, config)
            clients = frozenset(index for index, (_, is_pod) in wanted.items() if not is_pod)
            self.on_attached(clients, native_devices(network, self.attached))
            self._write(network, wanted, chosen.names)
            for name, text in self.problems.items():
                log.warning("a device takes no traffic", extra={"device": name, "error": text})
            _log_change(before, self.attached)

    def _write(self, network: NodeNetwork, wanted: Wanted, names: Collection[str]) -> None:
        """Tell the programs of the devices."""
        senders = xdp_senders(
            network, self.attached if self._done else None, names, self.config.attach, self.refusing_of
        )
        stacked = stacked_devices(network.links, wanted.keys())
        if self._written != (wanted, senders, stacked):
            self._left_out = write_devices(self._maps, wanted, senders, stacked)
            self._written = (wanted, senders, stacked)

    def _choose(self, network: NodeNetwork, config: Config) -> ChosenDevices:
        """Return the devices of --device. One that had a default route stays chosen: the route goes while its link flaps."""
        present = devices_present(network)
        self._default_routes.update(present.default_routes)
        chosen = choose_devices(config.device, present._replace(default_routes=self._default_routes), config.pod_device)
        self.renamed = self._renamed(network, chosen.missing)
        stay = {word: f"device {word} is not there; its programs stay" for word in self.renamed}
        return ChosenDevices((*chosen.names, *self.renamed), chosen.missing | stay)

    def _renamed(self, network: NodeNetwork, words: Iterable[str]) -> dict[str, Link]:
        """Return the devices that have programs and lost the name by which --device knows them, by that name.

        To take their programs away would end their flows, for a name.
        """
        there = {link.name for link in network.links.values()}
        lost = [word for word in words if word not in there and is_name(word)]
        indexes = self._datapath.attached_devices() if lost else {}
        links = {word: network.links.get(indexes.get(word, 0)) for word in lost}
        return {word: link for word, link in links.items() if link}


def _log_change(before: Iterable[Attachment], after: Iterable[Attachment]) -> None:
    """Log which attachments came and went; nothing when they are the same."""
    old, new = set(map(str, before)), set(map(str, after))
    if old != new:
        fields = {"attached": sorted(new - old), "detached": sorted(old - new), "total": len(new)}
        log.info("attachments changed", extra=fields)


def cgroup_hooks(keeper: DeviceKeeper | None) -> dict[str, list[str]]:
    """Return the hooks of socket programs that are in force, by the path of their cgroup."""
    out: dict[str, list[str]] = {}
    for item in keeper.attached if keeper else ():
        if item.target.kind is AttachPointKind.CGROUP:
            hooks = out.setdefault(item.target.name, [])
            hooks += [] if keeper and item in keeper.lost else [item.hook.name]
    return out


def wanted_devices(network: NodeNetwork, names: Collection[str], pod_patterns: Iterable[str]) -> Wanted:
    """Return these devices, and those behind which pods live, as far as they are there. A --device is never a pod device."""
    out: Wanted = {}
    for link in network.links.values():
        if link.name in names:
            out[link.index] = (link, False)
        elif any(fnmatchcase(link.name, pattern) for pattern in pod_patterns):
            out[link.index] = (link, True)
    return out


def expected_hooks(network: NodeNetwork, config: Config) -> set[Hook]:
    """Return the hooks that the devices which are there will get. In a thread: it queries the kernel."""
    chosen, present = choose_devices(config.device, devices_present(network), config.pod_device), devices()
    names = [name for name in chosen.names if name in present]
    return {item.hook for item in wanted_attachments(config.attach, names, config.pod_device, present)}


def native_devices(network: NodeNetwork, attached: Iterable[Attachment]) -> frozenset[int]:
    """Return the devices whose drivers run our XDP program."""
    links = [network.by_name(item.target.name) for item in attached if item.hook is XDP]
    return frozenset(link.index for link in links if link is not None)


def xdp_senders(
    network: NodeNetwork,
    attached: Iterable[Attachment] | None,
    names: Collection[str],
    mode: str,
    refusing_of: Refusing = refusing_devices,
) -> dict[int, Link]:
    """Return the devices by which our XDP programs can send, by ifindex.

    `attached` None: not known before the first attach; then what --attach `mode` asks for on the devices `names` holds.
    """
    if attached is None:
        hooks = set() if mode == "tc" else {XDP}
        native = frozenset(link.index for link in network.links.values() if link.name in names)
    else:
        hooks, native = {item.hook for item in attached}, native_devices(network, attached)
    if not any(hook.xdp_mode for hook in hooks):
        return {}
    refusing = refusing_of(network, native)
    return {
        link.index: link
        for link in network.links.values()
        if link.index not in refusing and len(link.mac) == ETHERNET_ADDRESS
    }


def require_devices(network: NodeNetwork, config: Config, known: Iterable[str] = ()) -> None:
    """Refuse names of devices of which none exists, nor is `known` to come back, before anything is done. Raises NotFound.

    With one device there, a pattern or `auto`, the agent serves what is there, names the rest and attaches to it when it comes.
    """
    if not config.device or any(word in known or not is_name(word) for word in config.device):
        return
    if not choose_devices(config.device, devices_present(network), config.pod_device).names:
        there = (link.name for link in network.links.values() if link.name != "lo")
        raise no_such_device(", ".join(config.device), there)
