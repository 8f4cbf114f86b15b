"""The inputs of `lbagent doctor`: this machine, its devices, and an agent's contents of the maps. Reads only.

It works without root as far as the kernel allows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from lbagent.bpf.hooks import XDP, AttachPointKind
from lbagent.bpf.load.attach import Attachment, wanted_attachments
from lbagent.bpf.load.devices import Device, default_route_devices, devices, no_such_device
from lbagent.bpf.load.links import pinned_links
from lbagent.config import Config
from lbagent.config.device_names import AUTO, ChosenDevices, DevicesPresent, choose_devices, is_name
from lbagent.errors import LbError
from lbagent.kernel import bpffs
from lbagent.kernel.mounts import is_private, would_be_private
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.pins import pin_dir
from lbagent.model.address import parse_ip
from lbagent.model.check import Level
from lbagent.model.family import Family
from lbagent.net.netlink import NetworkWatcher
from lbagent.net.snapshot import NodeNetwork
from lbagent.targets.bpf.checks.node_context import MissingDevice, ShortBackend
from lbagent.targets.bpf.checks.snat_ports import short_in_maps


class OfflineContext:
    """A node before the start: a NodeContext, and the inputs of doctor alone."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @cached_property
    def network(self) -> NodeNetwork | None:
        """A snapshot of the kernel's network."""
        try:
            return asyncio.run(_network())
        except LbError:
            return None

    @property
    def pins(self) -> Path:
        """The folder of the pins."""
        return pin_dir(self.config.bpffs)

    @cached_property
    def has_bpffs(self) -> bool:
        """Whether the folder of the pins is on a bpf file system."""
        folder = self._real_bpffs
        return not {folder, *folder.parents}.isdisjoint(bpffs.mounts())

    @property
    def has_private_pins(self) -> bool:
        """Whether only this mount namespace has the mount of the pins, or would have it."""
        return is_private(self._real_bpffs, mounted_here=False) if self.has_bpffs else would_be_private()

    @property
    def _real_bpffs(self) -> Path:
        return Path(os.path.realpath(self.config.bpffs))  # need not exist, and this user may have no permission

    @cached_property
    def has_socket_programs(self) -> bool:
        """Whether the node's own processes reach Services by socket programs: now, or with these settings."""
        try:
            links = pinned_links(self.pins)
        except OSError:
            links = []  # no permission
        return self.config.has_socket_programs or any(target.kind is AttachPointKind.CGROUP for target, _ in links)

    @property
    def forwarding_families(self) -> Collection[Family]:
        """Both families: backends of either may follow."""
        return () if self.config.serves_sockets_alone else tuple(Family)

    # --- devices ---

    @cached_property
    def present(self) -> dict[str, Device]:
        """Every device by name."""
        return devices()

    @cached_property
    def chosen(self) -> ChosenDevices:
        """The devices that --device matches."""
        loopback = [name for name, item in self.present.items() if item.loopback]
        defaults = default_route_devices() if AUTO in self.config.device else ()
        return choose_devices(
            self.config.device, DevicesPresent(self.present, loopback, defaults), self.config.pod_device
        )

    @cached_property
    def ingress(self) -> dict[str, Attachment]:
        """How programs will be attached to each device of --device."""
        return {name: wanted_attachments(self.config.attach, [name], (), self.present)[0] for name in self.chosen.names}

    @property
    def uses_xdp(self) -> bool:
        """Whether XDP programs will be in a driver."""
        return any(item.hook is XDP for item in self.ingress.values())

    @cached_property
    def pod_devices(self) -> Sequence[str]:
        """The devices that --pod-device matches now."""
        if not self.config.pod_device:
            return ()
        matched = wanted_attachments("tc", self.chosen.names, self.config.pod_device, self.present)
        return sorted({item.target.name for item in matched if item.optional})

    @property
    def devices(self) -> Sequence[str]:
        """The devices that get programs."""
        return [*self.chosen.names, *self.pod_devices]

    def missing_devices(self) -> Iterable[MissingDevice]:
        """Yield the words of --device without a device: an error where the agent would not start."""
        no_start = not self.chosen.names and all(map(is_name, self.config.device))
        for word, sentence in self.chosen.missing.items():
            if no_start:
                error = no_such_device(word, (name for name, item in self.present.items() if not item.loopback))
                yield MissingDevice(word, str(error), level=Level.ERROR, exit_code=error.exit_code)
            else:
                yield MissingDevice(word, sentence)

    # --- source addresses ---

    @property
    def snat_addresses(self) -> Iterable[bytes]:
        """The addresses of --snat-address."""
        return map(parse_ip, self.config.snat_address)

    def short_backends(self) -> Iterable[ShortBackend]:
        """Return the backends in the pinned maps that are short of SNAT ports."""
        if self.network is None:
            return ()
        first, last = self.config.snat_port_range
        try:
            with KernelMaps.open(self.config.bpffs, create=False) as maps:
                return list(short_in_maps(maps, last - first + 1, self.network.has))
        except (LbError, OSError):
            return ()  # no agent has run here, or no permission


async def _network() -> NodeNetwork:
    watcher = NetworkWatcher()
    try:
        return await watcher.start()
    finally:
        watcher.close()
