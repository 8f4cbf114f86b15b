"""Leftovers of kube-proxy on a node: rules, addresses and ports, their effect, and how to remove them.

Programs at devices see packets before netfilter does. kube-proxy's rules still see packets of the node's own processes, whose
destination they change before a device is reached, and packets that the programs pass. This module changes nothing. Source:
kube-proxy's proxiers (names of tables, chains and the device), iptables-save(8), proc_net_tcp(5).
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lbagent.config.schema import HEALTHZ, METRICS
from lbagent.kernel import nftables
from lbagent.model.address import L3n4Addr
from lbagent.model.check import Level, Result

TABLE = "kube-proxy"
IPVS_DEVICE = "kube-ipvs0"
# kubelet's own chains: it creates them again, and they balance nothing
KUBELETS = frozenset({"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"})
IPTABLES = {"ip": ("iptables", "/proc/net/ip_tables_names"), "ip6": ("ip6tables", "/proc/net/ip6_tables_names")}
LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
CLEANUP = "`kube-proxy --cleanup` in its image, privileged and with the node's network, removes the rules of every mode"
MEANS = (
    "processes of this node use them, after the end of kube-proxy with its last endpoints, which may be gone, and without new"
    " Services (with --socket-lb, sockets that connect to a Service's address bypass them)"
)
OURS = "lbagent"


def leftovers() -> Iterator[Result]:
    """Yield each leftover, with its effect on traffic and the command that removes it."""
    yield from _tables()
    yield from _legacy_chains()
    yield from _ipvs()
    yield from _ports()


def _tables() -> Iterator[Result]:
    ruleset = nftables.read_ruleset()
    if ruleset is None:
        yield Result(
            "nftables",
            text="nftables cannot be read: rules of kube-proxy may be there",
            remedy="install nft, and run this as root",
            level=Level.NOTE,
        )
        return
    for family, rules in sorted(proxy_tables(ruleset).items()):
        yield Result(
            f"{family} {TABLE}",
            text=f"nftables: the table {family} {TABLE} of kube-proxy is there, with {rules} rules: {MEANS}",
            remedy=f"nft delete table {family} {TABLE}",
        )
    for family, chains in sorted(proxy_chains(ruleset).items()):
        yield _chains(f"{IPTABLES[family][0]}-nft", chains)


def proxy_tables(ruleset: dict[str, Any]) -> dict[str, int]:
    """Return the families with kube-proxy's own table, and the number of its rules."""
    items = ruleset.get("nftables", ())
    found = {item["table"]["family"]: 0 for item in items if item.get("table", {}).get("name") == TABLE}
    for item in items:
        rule = item.get("rule", {})
        if rule.get("table") == TABLE and rule.get("family") in found:
            found[rule["family"]] += 1
    return found


def proxy_chains(ruleset: dict[str, Any]) -> dict[str, int]:
    """Return how many chains of kube-proxy's iptables and ipvs modes each family has, where iptables writes nftables."""
    chains = (item["chain"] for item in ruleset.get("nftables", ()) if "chain" in item)
    return Counter(each["family"] for each in chains if each["family"] in IPTABLES and is_proxys_chain(each["name"]))


def is_proxys_chain(name: str) -> bool:
    """Return whether kube-proxy made a chain of this name."""
    return name.startswith("KUBE-") and name not in KUBELETS


def _legacy_chains() -> Iterator[Result]:
    """Yield chains of iptables-legacy, which nft does not list. A table is read only if the kernel has it already."""
    for command, names in IPTABLES.values():
        tables = _lines(names)
        number = sum(sum(map(is_proxys_chain, _legacy(command, table))) for table in tables)
        if number:
            yield _chains(f"{command}-legacy", number)


def _legacy(command: str, table: str) -> list[str]:
    """Return the names of a table's chains; none where they cannot be read."""
    try:
        done = subprocess.run(
            [f"{command}-legacy-save", "-t", table],
            capture_output=True,
            text=True,
            timeout=nftables.TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    return re.findall(r"^:(\S+)", done.stdout, re.MULTILINE)


def _chains(command: str, number: int) -> Result:
    what = f"{command}: {number} chains of kube-proxy (KUBE-SERVICES and others) are there: {MEANS}"
    base, _, way = command.partition("-")
    restore = f"{base}-{way}-save | grep -v KUBE- | {base}-{way}-restore"
    return Result(command, text=what, remedy=f"{CLEANUP}; or: {restore} (kubelet makes its own chains again)")


def has_ipvs_device() -> bool:
    """Return whether this network namespace has the device of kube-proxy's mode ipvs."""
    return IPVS_DEVICE in {name for _, name in socket.if_nameindex()}


def _ipvs() -> Iterator[Result]:
    if has_ipvs_device():
        yield Result(
            IPVS_DEVICE,
            text=f"the device {IPVS_DEVICE} of kube-proxy's mode ipvs is there: addresses of Services are addresses of this node,"
            " so that its processes reach them by IPVS, or, when that has ended, not at all",
            remedy=f"{CLEANUP}; or: ip link delete {IPVS_DEVICE} and ipvsadm --clear",
        )


def _ports() -> Iterator[Result]:
    wanted = {
        L3n4Addr.parse(text).port: what
        for texts, what in ((HEALTHZ, "/healthz"), (METRICS, "/metrics"))
        for text in texts
    }
    listening = listeners([*_lines("/proc/net/tcp"), *_lines("/proc/net/tcp6")], wanted)
    owners = _owners(listening)
    for port in sorted({*listening.values()}):
        names = {owners.get(inode, "") for inode, each in listening.items() if each == port}
        if not all(OURS in name for name in names):
            who = ", ".join(sorted(name or "an unknown process" for name in names))
            yield Result(
                f"port {port}",
                text=f"port {port} ({wanted[port]}) is taken by {who}: lbagent cannot serve it there; probes and balancers reach"
                " that process",
                remedy="kubectl -n kube-system delete daemonset kube-proxy if it is kube-proxy's; lbagent opens the port within"
                " 5 s",
            )


def listeners(lines: Iterable[str], ports: Iterable[int]) -> dict[str, int]:
    """Return the sockets (by inode) that listen on one of these ports, by the lines of /proc/net/tcp."""
    found = {}
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTENS and (port := int(fields[1].rpartition(":")[2], 16)) in ports:
            found[fields[9]] = port
    return found


def _owners(inodes: Iterable[str]) -> dict[str, str]:
    """Return name and pid of a process with each of these sockets, within this user's permissions."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, str] = {}
    for folder in Path("/proc").iterdir() if wanted else ():
        if folder.name.isdigit():
            links = _descriptors(folder / "fd")
            if wanted.keys().isdisjoint(links):
                continue
            try:
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                name = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
            except OSError:
                continue
            shown = OURS if re.search(r"\blbagent agent\b", words) else name
            found |= {wanted[link]: f"{shown} (pid {folder.name})" for link in links & wanted.keys()}
    return found


def _descriptors(folder: Path) -> set[str]:
    """Return the targets of a process's descriptors; some are gone before they are read."""
    found = set()
    with suppress(OSError):
        for each in folder.iterdir():
            with suppress(OSError):
                found.add(os.readlink(each))
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
