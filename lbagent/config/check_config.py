"""Checks beyond the types of the schema: sizes that must be a power of two, ranges, addresses, names of devices."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from lbagent.config.schema import AUTO, BY_KEY, PRIMARY, Config
from lbagent.model.exclusion import Exclusion
from lbagent.model.extra_snat_sources import MAX_EXTRA_SNAT
from lbagent.model.maglev import TABLE_SIZES
from lbagent.model.service import CIDR


def check(config: Config, places: Mapping[str, str], fault: Callable[[str], None]) -> None:
    """Check powers of two, ranges, addresses. `fault` takes a message with the place."""

    def refuse(key: str, what: str) -> None:
        fault(f"{places.get(key, key)}: {what}")

    for key, low, high in _POWERS:
        value = getattr(config, key.replace("-", "_"))
        optional = BY_KEY[key].default == 0
        if not (optional and value == 0) and (value & (value - 1) or not low <= value <= high):
            refuse(key, f"{value} is not a power of two from {low} to {high}")
    _check_addresses(config, refuse)
    for key, names in (("device", config.device), ("pod-device", config.pod_device)):
        for name in filter(_is_no_device, names):
            refuse(key, f"{name!r} cannot be the name of a network device")
    if wrong := _wrong_ports(config.snat_ports):
        refuse("snat-ports", wrong)
    if config.maglev_table_size not in TABLE_SIZES:
        sizes = ", ".join(map(str, TABLE_SIZES))
        refuse("maglev-table-size", f"{config.maglev_table_size} is not a table size; one of {sizes} is possible")
    _check_listeners(config, refuse)
    empty = [key for key in ("socket", "bpffs", "state-dir") if not getattr(config, key.replace("-", "_"))]
    if empty:
        refuse(empty[0], "must not be empty")
    _check_sources(config, refuse)
    _check_liveness(config, refuse)


def _check_liveness(config: Config, refuse: Callable[[str, str], None]) -> None:
    if config.node_liveness == "off":
        return
    if not config.liveness_key_file:
        refuse(
            "node-liveness", "udp needs liveness-key-file, too: without a key any host could claim that a node lives"
        )
    if not config.has_kubernetes:
        refuse("node-liveness", "udp needs a Kubernetes API: give --kubeconfig or --in-cluster, too")
    if config.shadow:
        refuse("node-liveness", "an agent with shadow changes nothing")


def _check_addresses(config: Config, refuse: Callable[[str, str], None]) -> None:
    for value in config.node_ip:
        if not _is_address(value):
            refuse("node-ip", f"{value!r} is not an IP address")
    if wrong := _wrong_node_port_addresses(config.nodeport_addresses):
        refuse("nodeport-addresses", wrong)
    if wrong := _wrong_ranges(config.external_ip_cidr):
        refuse("external-ip-cidr", wrong)
    if wrong := _wrong_exclusions(config.exclude):
        refuse("exclude", wrong)
    if wrong := _wrong_snat_addresses(config.snat_address):
        refuse("snat-address", wrong)
    if wrong := _wrong_ranges(config.cluster_cidr):
        refuse("cluster-cidr", wrong)
    if config.egress_snat == "on" and config.services:
        refuse("egress-snat", "it is for an agent that serves no Services: give --no-services, too")
    if config.egress_snat == "on" and config.shadow:
        refuse("egress-snat", "an agent with shadow changes nothing")
    if config.cluster_cidr and config.egress_snat != "on":
        refuse("cluster-cidr", "it has an effect only with egress-snat on")


def _check_listeners(config: Config, refuse: Callable[[str, str], None]) -> None:
    if config.metrics_address and not _is_address_and_port(config.metrics_address):
        refuse("metrics-address", f"{config.metrics_address!r} is not ADDRESS:PORT like 127.0.0.1:9100 or [::1]:9100")
    for key in ("metrics-bind-address", "healthz-bind-address"):
        value = getattr(config, key.replace("-", "_"))
        if value not in ("", AUTO) and not _is_address_and_port(value):
            refuse(key, f"{value!r} is not ADDRESS:PORT like 127.0.0.1:10249 or [::1]:10249, and not auto")
    if config.ui and not (config.metrics_address or config.metrics_listen_addresses):
        refuse("ui", "there is no address for the page: give metrics-address, too, or use `lbagent ui`")
    if config.ui_host and not config.ui:
        refuse("ui-host", "it has an effect only with ui")
    if config.metrics_address and config.metrics_bind_address != AUTO:
        refuse("metrics-bind-address", "it cannot be given beside metrics-address: they are one setting")


def _check_sources(config: Config, refuse: Callable[[str, str], None]) -> None:
    if config.kubeconfig and config.in_cluster:
        refuse("in-cluster", "it cannot be given beside kubeconfig: there is one Kubernetes API")
    if config.synthetic and not re.fullmatch("[0-9]+:[0-9]+", config.synthetic):
        refuse("synthetic", f"{config.synthetic!r} is not SERVICES:BACKENDS, as in 10000:10")


# key, minimum, maximum. A one-element array map holds at most 512 MiB; backends have 20 bits in a flow entry.
_POWERS: Sequence[tuple[str, int, int]] = (
    ("flow-table-size", 1 << 10, 1 << 23),
    ("flow6-table-size", 1 << 10, 1 << 22),
    ("snat-table-size", 1 << 10, 1 << 24),
    ("snat6-table-size", 1 << 10, 1 << 23),
    ("max-backends", 1 << 8, 1 << 20),
)


MIN_SNAT_PORT = 256  # a flow's entry stores its forwarding mode where a lower port would be (docs/datapath.md)


def _wrong_ports(text: str) -> str:
    """Return why a text is not a range of SNAT ports, '' if it is one."""
    first, dash, last = text.partition("-")
    if not (dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        return f"{text!r} is not a port range; write FIRST-LAST, for example 1024-29999"
    low, high = int(first), int(last)
    if low < MIN_SNAT_PORT:
        return f"{text} begins below {MIN_SNAT_PORT}; choose at least 64 ports between {MIN_SNAT_PORT} and 65535"
    if not low <= high <= 65535 or high - low < 63:
        return f"{text} must hold at least 64 ports between {MIN_SNAT_PORT} and 65535, the smaller one first"
    return ""


def _wrong_snat_addresses(texts: Sequence[str]) -> str:
    """Return why these cannot be source addresses of the node, '' if they can."""
    found: dict[str, IPv4Address | IPv6Address] = {}
    for text in texts:
        if not _is_address(text):
            return f"{text!r} is not an IP address"
        address = found[text] = ip_address(text)
        if address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local:
            return f"{text!r} cannot be the source of packets to other hosts; name an address that a device of this node has"
    for version in (4, 6):
        number = len({address for address in found.values() if address.version == version})
        if number > MAX_EXTRA_SNAT:
            return (
                f"{number} IPv{version} addresses are too many; at most {MAX_EXTRA_SNAT} of each IP family are possible"
            )
    return ""


def _wrong_node_port_addresses(texts: Sequence[str]) -> str:
    """Return why these do not select addresses, '' if they do."""
    if PRIMARY in texts:
        return "" if len(texts) == 1 else f"{PRIMARY} cannot be combined with ranges"
    wrong = _wrong_ranges(texts)
    return f"{wrong}; give ranges, or {PRIMARY} alone" if wrong else ""


def _wrong_ranges(texts: Sequence[str]) -> str:
    """Return why one of these is no range, '' if all are."""
    for text in texts:
        try:
            CIDR.parse(text)
        except ValueError as error:
            return str(error)
    return ""


def _wrong_exclusions(texts: Sequence[str]) -> str:
    """Return why one of these excludes nothing, '' if all do."""
    for text in texts:
        try:
            Exclusion.parse(text)
        except ValueError as error:
            return str(error)
    return ""


def _is_no_device(name: str) -> bool:
    return not 1 <= len(name) <= 15 or "/" in name or any(c.isspace() for c in name)


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    return False


def _is_address_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return (":" in bare) == (bare != host) and _is_address(bare) and port.isdecimal() and 0 <= int(port) <= 65535
