"""The devices that the words of `--device` choose from, of a snapshot of the node's network. Pure."""

from __future__ import annotations

from lbagent.config.device_names import DevicesPresent
from lbagent.net.snapshot import NodeNetwork


def devices_present(network: NodeNetwork) -> DevicesPresent:
    """Return what there is to choose from; `lo` is the one loopback device of a namespace."""
    defaults = network.routes4.default_devices | network.routes6.default_devices
    names = {link.name for link in network.links.values()}
    return DevicesPresent(names, {"lo"}, {link.name for link in network.links.values() if link.index in defaults})
