"""`lbagent migrate --from kube-proxy`, there and back, beside a real kube-proxy: under load, with open connections."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.kube_api.cluster import Cluster
from tests.kube_api.migration import DNS, MigratingNode, OpenConnections, served_by_kube_proxy
from tests.kube_api.programs import Programs
from tests.lab.netns import wait_for
from tests.lab.traffic import Datagrams, Load

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
OPEN = 4  # conversations over UDP
MIGRATE = ("migrate", "--from", "kube-proxy")


@pytest.fixture
def node(cluster: Cluster, programs: Programs) -> Iterator[MigratingNode]:
    """A node that kube-proxy serves, with an agent that only compares, and without another chain of type nat."""
    with served_by_kube_proxy(cluster, programs, "nftables", "tc") as one:
        for family in ("ip", "ip6"):
            nft(one, f"delete table {family} cni")
        for path in ("udp_timeout", "udp_timeout_stream"):  # longer than a busy machine takes between two datagrams
            write = f"echo 600 > /proc/sys/net/netfilter/nf_conntrack_{path}"
            subprocess.run(one.lab.node.command(["sh", "-c", write]), check=True)
        one.agent.arguments = ["--shadow", "--socket-lb", "--cgroup", str(one.cgroup), "--timeout-udp", "5"]
        one.agent.start()
        yield one


def nft(node: MigratingNode, *words: str) -> str:
    argv = node.lab.node.command(["nft", *words[0].split(), *words[1:]])
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def dormant(node: MigratingNode) -> list[bool]:
    return ["flags dormant" in nft(node, f"list table {family} kube-proxy") for family in ("ip", "ip6")]


def has_bpf(node: MigratingNode) -> bool:
    """Return whether maps and programs of lbagent are there."""
    return (node.lab.bpffs / "v1").exists()


def migrate(node: MigratingNode, *words: str, code: int = 0) -> str:
    def answered() -> subprocess.CompletedProcess[str] | None:
        """An agent that has just begun to compare has nothing in force, and refuses."""
        done = node.agent.cli(*MIGRATE, *words, check=False)
        return None if "no state in force yet" in done.stderr else done

    done = wait_for(answered, "what is compared")
    assert done is not None
    assert done.returncode == code, (done.stdout, done.stderr, node.agent.tail())
    return done.stdout + done.stderr


def failures(loads: dict[str, Load]) -> dict[str, list[str]]:
    assert all(load.tally.total > 100 for load in loads.values())
    return {place: load.tally.failures for place, load in loads.items() if load.tally.failures}


def serves(node: MigratingNode) -> bool:
    return bool(node.agent.api.migration()["serves"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("renderer", ["nftables", "bpf"])
def test_there_and_back(node: MigratingNode, renderer: str) -> None:
    """No connection ends and no request fails. On the way back bpf continues with the flows that it has, until they end."""
    earlier, datagrams = node.open(), Datagrams(node.lab.client, DNS, 53, OPEN)
    with node.asked() as loads:
        shown = migrate(node)
    assert "no differences" in shown
    assert failures(loads) == {}
    assert (serves(node), dormant(node)) == (False, [False, False])

    with node.asked() as loads:
        migrate(node, "--yes", "--renderer", renderer)
    assert failures(loads) == {}
    assert (serves(node), dormant(node)) == (True, [True, True])
    assert earlier.go_on()
    assert datagrams.ask() == datagrams.first
    later = node.open()
    with node.asked() as loads:
        node.kube_proxy.stop()
        node.agent.stop()
        node.agent.start()
        assert serves(node), "a restart with --shadow serves on"
        assert "nothing to do" in migrate(node, "--yes")
    assert failures(loads) == {}
    assert earlier.go_on()
    assert later.go_on()
    assert datagrams.ask() == datagrams.first
    datagrams.close()

    with node.asked() as loads:
        shown = migrate(node, "--back")
        node.start_kube_proxy()
    assert failures(loads) == {}
    assert (serves(node), dormant(node)) == (False, [False, False])
    assert "lbagent" not in nft(node, "list tables")
    assert earlier.go_on()
    assert later.go_on()
    with node.asked() as loads:
        wait_for(lambda: node.agent.api.shadow()["same"] > 0, "compared connections")
    assert failures(loads) == {}
    if renderer == "bpf":
        assert "keeps those that it has until they end" in shown
        ends_with_its_flows(node, later)


def ends_with_its_flows(node: MigratingNode, later: OpenConnections) -> None:
    """The rest of bpf: over a restart of the agent, and gone with the last connection that began with it."""
    node.agent.kill()
    assert later.go_on()
    node.agent.start()
    assert not serves(node)
    assert later.go_on()
    assert any("kube-proxy takes over from bpf" in text for text in node.agent.api.status()["problems"])
    assert has_bpf(node)
    later.close()
    with node.asked() as loads:
        wait_for(lambda: not has_bpf(node), "the end of bpf", 120)
    assert failures(loads) == {}
    assert not node.agent.api.migration()["is_left"]
    assert "takes over" not in str(node.agent.api.status()["problems"])


@pytest.mark.timeout(300)
def test_back_needs_rules_that_are_up_to_date(node: MigratingNode, cluster: Cluster) -> None:
    """kube-proxy was stopped, and an object has changed since: lbagent serves until kube-proxy has it."""
    migrate(node, "--yes", "--renderer", "nftables")
    node.kube_proxy.stop()
    cluster.delete_service("dns")
    wait_for(lambda: "dns" not in {each["name"] for each in node.agent.api.services()}, "the end of the Service")
    shown = migrate(node, "--back", code=1)
    assert "default/dns 10.96.0.53:53/UDP: stale" in shown
    assert "continues to serve" in shown
    assert (serves(node), dormant(node)) == (True, [False, False])
    node.kube_proxy.start()
    migrate(node, "--back")
    assert (serves(node), dormant(node)) == (False, [False, False])


@pytest.mark.timeout(300)
def test_a_difference_prevents_the_switch(node: MigratingNode) -> None:
    nft(node, "add element ip kube-proxy service-nodeports { tcp . 30999 : drop }")
    for words in ((), ("--yes", "--renderer", "nftables")):
        assert "10.77.0.1:30999/TCP: stale" in migrate(node, *words, code=1)
        assert (serves(node), dormant(node)) == (False, [False, False])
    migrate(node, "--yes", "--renderer", "nftables", "--despite-differences")
    assert (serves(node), dormant(node)) == (True, [True, True])


@pytest.mark.timeout(300)
def test_what_cannot_serve_changes_nothing(node: MigratingNode) -> None:
    """A table of our name that is another program's: the agent cannot serve, and compares again."""
    nft(node, "add table inet lbagent")
    shown = migrate(node, "--yes", "--renderer", "nftables", code=4)
    assert "table inet lbagent is not lbagent's" in shown
    assert (serves(node), dormant(node)) == (False, [False, False])
    assert migrate(node, "--yes", "--renderer", "nonsense", code=2)
    assert "lbagent-migration" not in nft(node, "list tables")
    nft(node, "delete table inet lbagent")
    nft(node, "delete table ip kube-proxy")
    nft(node, "delete table ip6 kube-proxy")
    for words in ((), ("--yes",), ("--back",)):
        migrate(node, *words, code=3)


@pytest.mark.timeout(300)
def test_cleanup_gives_the_node_back(node: MigratingNode) -> None:
    """kube-proxy cannot start with dormant rules: they are in force before the data plane goes."""
    migrate(node, "--yes", "--renderer", "nftables")
    node.agent.stop()
    earlier = node.open()
    with node.asked() as loads:
        done = node.agent.cli("cleanup")
    assert "put table ip kube-proxy in force" in done.stdout
    assert failures(loads) == {}
    assert earlier.go_on()
    assert dormant(node) == [False, False]
    assert "lbagent" not in nft(node, "list tables")
    node.agent.start()
    assert not serves(node)
