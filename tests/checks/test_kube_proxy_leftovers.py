"""doctor --kubernetes: each thing that kube-proxy leaves, in a namespace made for it, with the command that removes it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace as Some

import pytest

from lbagent.checks import kube_proxy_leftovers as leftovers
from lbagent.checks.table import every_check
from lbagent.cli.main import cli
from lbagent.kernel import nftables
from lbagent.model.check import Level
from tests.lab.netns import Namespace

pytestmark = [pytest.mark.root]
RULES = """
table FAMILY kube-proxy {
    map service-ips { type ADDRESS . inet_proto . inet_service : verdict; }
    chain nat-output { type nat hook output priority -100; policy accept; jump services; }
    chain services { counter; counter; }
}
table FAMILY nat {
    chain PREROUTING { type nat hook prerouting priority -100; policy accept; }
    chain KUBE-KUBELET-CANARY { }
    chain KUBE-SERVICES { }
    chain KUBE-SVC-ERIFXISQEP7F7OF4 { }
}
table inet own { chain kube-proxy { }; chain KUBE-SERVICES { }; }
"""


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A node that has nothing of kube-proxy yet; the test runs in its network."""
    space = Namespace("left")
    try:
        space.ip("link set lo up")
        with space.entered():
            yield space
    finally:
        space.delete()


def nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def found(level: Level = Level.WARNING) -> list[str]:
    (check,) = (check for check in every_check() if check.name == "kube-proxy-left")
    items = [check.finding(result) for result in check.run(Some(kubernetes=True))]  # type: ignore[union-attr]
    return [f"{item.text} -> {item.remedy}" for item in items if item.level == level]


def test_a_clean_node_is_said_to_be_clean(node: Namespace) -> None:
    assert found() == []
    assert found(Level.OK) == ["nothing of kube-proxy is on this node: no rules, no addresses, no ports -> "]


def test_kubelets_chains_and_other_tables_are_no_leftovers(node: Namespace) -> None:
    nft(
        "table ip nat { chain KUBE-KUBELET-CANARY { }; chain KUBE-FIREWALL { }; chain KUBE-IPTABLES-HINT { }; chain K { }; }"
    )
    nft("table inet kube { chain KUBE-SERVICES { }; }")
    assert found() == []


@pytest.mark.parametrize(
    ("family", "address", "command"), [("ip", "ipv4_addr", "iptables"), ("ip6", "ipv6_addr", "ip6tables")]
)
def test_rules_of_both_modes_and_what_removes_them(node: Namespace, family: str, address: str, command: str) -> None:
    nft(RULES.replace("FAMILY", family).replace("ADDRESS", address))
    table, chains = found()
    assert table.startswith(
        f"nftables: the table {family} kube-proxy of kube-proxy is there, with 3 rules: processes of this node"
    )
    assert table.endswith(f" -> nft delete table {family} kube-proxy")
    assert chains.startswith(f"{command}-nft: 2 chains of kube-proxy")
    assert f"{command}-nft-save | grep -v KUBE- | {command}-nft-restore" in chains
    subprocess.run(table.partition(" -> ")[2].split(), check=True)
    assert len(found()) == 1


def test_chains_of_iptables_legacy(node: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few machines have its tables any more, so its answer is given here."""
    names = {"/proc/net/ip_tables_names": ["nat"], "/proc/net/ip6_tables_names": []}
    lines = leftovers._lines
    monkeypatch.setattr(leftovers, "_lines", lambda path: names.get(path, lines(path)))
    answers = {("iptables", "nat"): ["PREROUTING", "KUBE-SERVICES", "KUBE-KUBELET-CANARY", "KUBE-SEP-A"]}
    monkeypatch.setattr(leftovers, "_legacy", lambda command, table: answers[command, table])
    (one,) = found()
    assert one.startswith("iptables-legacy: 2 chains of kube-proxy")


def test_a_command_of_iptables_legacy_that_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert leftovers._legacy("iptables", "nat") == []


def test_the_device_of_ipvs(node: Namespace) -> None:
    node.ip("link add kube-ipvs0 type veth peer name other")
    (one,) = found()
    assert "the device kube-ipvs0 of kube-proxy's mode ipvs is there" in one
    assert "ip link delete kube-ipvs0" in one


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_a_port_that_another_process_has(node: Namespace, host: str) -> None:
    with socket.create_server((host, 10256), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
        (one,) = found()
        assert f"port 10256 (/healthz) is taken by {name_of_this_process()} (pid {os.getpid()})" in one
    with socket.create_server(("127.0.0.1", 10250)):
        assert found() == []


def name_of_this_process() -> str:
    with open("/proc/self/comm") as file:
        return file.read().strip()


def test_rules_that_cannot_be_read_are_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch, node: Namespace) -> None:
    monkeypatch.setattr(nftables, "read_ruleset", lambda: None)
    assert found() == []
    assert found(Level.NOTE)[0].startswith("nftables cannot be read")


def test_doctor_looks_only_when_it_is_asked(node: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    nft("table ip kube-proxy { }\n")
    for flags, is_there in (([], False), (["--kubernetes"], True)):
        cli.main(["doctor", *flags], standalone_mode=False)
        assert ("nft delete table ip kube-proxy" in capsys.readouterr().out) is is_there
