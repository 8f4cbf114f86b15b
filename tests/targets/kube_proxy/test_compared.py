"""`verify --renderer kube-proxy -f`: rules that a real kube-proxy made, in a real kernel, with and without changes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.agent import program
from tests.lab.netns import Namespace

pytestmark = pytest.mark.root
HERE = Path(__file__).parent
NODE = "demo-node"
# with one family's ranges alone, kube-proxy lets every client of the other family in, and lbagent none
ALWAYS = ("default/lb", "[fd77:200::1]:80/TCP", "differs", "clients of any address, wanted of no address")
BOTH = "backends 10.244.1.1:8080, 10.244.2.1:8080"


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A network namespace with kube-proxy's two tables."""
    space = Namespace("node", "kp-")
    try:
        nft(space, (HERE / "rules.nft").read_text())
        yield space
    finally:
        space.delete()


def nft(space: Namespace, text: str) -> str:
    argv = space.command(["nft", "-f", "-"])
    return subprocess.run(argv, input=text, check=True, capture_output=True, text=True).stdout


def verify(
    space: Namespace, *words: str, objects: Path = HERE / "services.yaml", node: str = NODE
) -> subprocess.CompletedProcess[str]:
    argv = [*program(), "verify", "--renderer", "kube-proxy", "-f", str(objects), "--node", node, *words]
    return subprocess.run(space.command(argv), capture_output=True, text=True, check=False)


def found(space: Namespace, **more: Any) -> set[tuple[str, str, str, str]]:
    """Return what differs, without ALWAYS."""
    done = verify(space, "-o", "json", **more)
    assert done.returncode == 1, done
    rows = json.loads(done.stdout)
    assert {row["renderer"] for row in rows} == {"kube-proxy"}
    assert not any(row["repaired"] for row in rows)
    texts = {(row["service"], row["frontend"], row["kind"], row["detail"]) for row in rows}
    assert ALWAYS in texts
    return texts - {ALWAYS}


def test_rules_of_the_same_objects_do_not_differ(node: Namespace) -> None:
    """ClusterIP, NodePort, LoadBalancer, externalIPs, both policies, affinity, ranges, no endpoints, both families."""
    assert found(node) == set()


def test_a_line_for_each_difference(node: Namespace) -> None:
    done = verify(node)
    assert done.stdout == f"kube-proxy: {ALWAYS[0]} {ALWAYS[1]}: {ALWAYS[2]}: {ALWAYS[3]}\n"
    assert done.returncode == 1


def test_what_is_missing_and_stale(node: Namespace) -> None:
    nft(node, "delete element ip kube-proxy service-ips { 10.110.202.185 . tcp . 80 }")
    nft(
        node, "add element ip kube-proxy service-nodeports { tcp . 30999 : goto external-D2RGPZ6L-default/lb/tcp/http }"
    )
    nft(
        node,
        'add element ip kube-proxy no-endpoint-services { 10.96.9.9 . udp . 53 comment "a/b:c" : goto reject-chain }',
    )
    assert found(node) == {
        ("default/plain", "10.110.202.185:80/TCP", "missing", "kube-proxy does not serve it"),
        ("default/lb", "10.77.0.1:30999/TCP", "stale", "no Service of lbagent has it"),
        ("a/b", "10.96.9.9:53/UDP", "stale", "no Service of lbagent has it"),
    }


def test_another_backend(node: Namespace) -> None:
    chain = "ip kube-proxy service-OZKOY7AO-default/plain/tcp/http"
    rule = "meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.244.1.1 . 8080, 1 : 10.244.1.1 . 8081 }"
    nft(node, f"flush chain {chain}; add rule {chain} {rule}")
    assert found(node) == {
        (
            "default/plain",
            "10.110.202.185:80/TCP",
            "differs",
            f"backends 10.244.1.1:8080, 10.244.1.1:8081, wanted {BOTH}",
        )
    }


def test_rules_of_older_versions(node: Namespace) -> None:
    """Up to 1.35 each endpoint has a chain, also without affinity, and a mark has a chain."""
    table, chain = "ip kube-proxy", "service-OZKOY7AO-default/plain/tcp/http"
    ends = {n: f"endpoint-AAAAAAA{n}-default/plain/tcp/http__10.244.{n}.1/8080" for n in (1, 2)}
    text = f"flush chain {table} {chain}; add chain {table} mark-for-masquerade;"
    text += f"add rule {table} mark-for-masquerade mark set mark or 0x4000;"
    for n, end in ends.items():
        text += f"add chain {table} {end}; add rule {table} {end} ip saddr 10.244.{n}.1 jump mark-for-masquerade;"
        text += f"add rule {table} {end} meta l4proto tcp dnat to 10.244.{n}.1:8080;"
    text += f"add rule {table} {chain} ip daddr 10.110.202.185 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade;"
    text += f"add rule {table} {chain} numgen random mod 2 vmap {{ 0 : goto {ends[1]}, 1 : goto {ends[2]} }}"
    nft(node, text)
    assert found(node) == set()
    nft(node, f"flush chain {table} {ends[2]}")
    assert found(node) == {
        ("default/plain", "10.110.202.185:80/TCP", "differs", f"backend 10.244.1.1:8080, wanted {BOTH}")
    }


def test_pods_and_processes_of_the_node_have_rules_of_their_own(node: Namespace) -> None:
    """With externalTrafficPolicy Local they reach every endpoint: without these two rules they do not."""
    chain = "ip kube-proxy external-MIHOPHSS-default/lblocal/tcp/http"
    nft(node, f"flush chain {chain}; add rule {chain} goto local-MIHOPHSS-default/lblocal/tcp/http")
    detail = f"backend 10.244.1.1:8080, wanted {BOTH} for pods and processes of the node"
    assert found(node) == {
        ("default/lblocal", "10.77.200.2:80/TCP", "differs", detail),
        ("default/lblocal", "10.77.0.1:31854/TCP", "differs", detail),
    }
    nft(node, f"insert rule {chain} fib saddr type local goto service-MIHOPHSS-default/lblocal/tcp/http")
    assert {row[3] for row in found(node)} == {f"backend 10.244.1.1:8080, wanted {BOTH} for pods"}


def test_affinity_ranges_and_refusals(node: Namespace) -> None:
    nft(node, "flush chain ip kube-proxy firewall-D2RGPZ6L-default/lb/tcp/http")
    nft(
        node,
        "delete element ip kube-proxy no-endpoint-services { 198.51.100.9 . tcp . 80 };"
        'add element ip kube-proxy no-endpoint-services { 198.51.100.9 . tcp . 80 comment "default/none:http" : drop };'
        "delete element ip kube-proxy no-endpoint-nodeports { tcp . 32245 }",
    )
    assert found(node) == {
        (
            "default/lb",
            "10.77.200.1:80/TCP",
            "differs",
            "clients of any address, wanted of 192.0.2.0-192.0.2.255, 198.51.100.7",
        ),
        ("default/none", "198.51.100.9:80/TCP", "differs", "dropped, wanted refused"),
        ("default/none", "10.77.0.1:32245/TCP", "missing", "kube-proxy does not serve it"),
    }


def test_another_time_of_affinity(node: Namespace, tmp_path: Path) -> None:
    for text, wanted in (("timeoutSeconds: 60\n", "60 s"), ("timeoutSeconds: 601\n", "601 s")):
        objects = tmp_path / "services.yaml"
        objects.write_text((HERE / "services.yaml").read_text().replace("timeoutSeconds: 600\n", text))
        detail = f"affinity 600 s, wanted {wanted}"
        assert found(node, objects=objects) == {("default/sticky", "10.99.26.109:80/TCP", "differs", detail)}


def test_node_ports_at_every_address(node: Namespace) -> None:
    """With --nodeport-addresses of all addresses, kube-proxy has no set of them."""
    text = (HERE / "rules.nft").read_text()
    for address in ("ip daddr", "ip6 daddr"):
        text = text.replace(f"{address} @nodeport-ips", "fib daddr type local")
    parts = text.split("\tset nodeport-ips {")
    text = parts[0] + "".join(part.split("\t}\n", 1)[1] for part in parts[1:])
    nft(node, f"flush ruleset\n{text}")
    assert found(node) == set()


def test_a_dormant_table_has_no_effect(node: Namespace) -> None:
    nft(node, "add table ip kube-proxy { flags dormant; }")
    done = verify(node)
    assert "kube-proxy: differs: table ip kube-proxy is dormant: its chains have no effect\n" in done.stdout
    assert "ip6 kube-proxy" not in done.stdout


def test_what_is_not_kube_proxys_changes_nothing(node: Namespace) -> None:
    before = subprocess.run(node.command(["nft", "list", "ruleset"]), capture_output=True, text=True, check=True)
    verify(node)
    after = subprocess.run(node.command(["nft", "list", "ruleset"]), capture_output=True, text=True, check=True)
    assert after.stdout == before.stdout


def test_exit_codes(node: Namespace, tmp_path: Path) -> None:
    wrong = verify(node, "--repair")
    assert (wrong.returncode, "kube-proxy writes them" in wrong.stderr) == (2, True)
    nft(node, "delete table ip kube-proxy")
    assert "missing" in verify(node).stdout  # the other family's table is there
    nft(node, "delete table ip6 kube-proxy")
    none = verify(node)
    assert (none.returncode, none.stdout) == (3, "")
    assert "there is no table ip kube-proxy" in none.stderr
    argv = [*program(), "verify", "--renderer", "kube-proxy", "--socket", str(tmp_path / "none.sock")]
    assert subprocess.run(node.command(argv), capture_output=True, check=False).returncode == 5
