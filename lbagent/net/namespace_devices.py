"""Whether an agent's devices are in this network namespace: many have the same name and index, a MAC address identifies one."""

from __future__ import annotations

from collections.abc import Mapping

from lbagent.iproute import IPRoute


def are_here(devices: Mapping[str, int], macs: Mapping[int, bytes]) -> bool:
    """Return whether one of these devices (index by name) is in this network namespace; `macs` are those known, by index."""
    with IPRoute() as netlink:
        present = {
            link["index"]: (link.get_attr("IFLA_IFNAME"), link.get_attr("IFLA_ADDRESS") or "")
            for link in netlink.get_links()
        }
    for name, index in devices.items():
        found_name, mac = present.get(index, ("", ""))
        if bytes.fromhex(mac.replace(":", "")) == macs[index] if index in macs else found_name == name:
            return True
    return False
