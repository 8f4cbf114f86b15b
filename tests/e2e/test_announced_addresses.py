"""Addresses that the node announces, in a folder's mode: a client on the same link finds them by ARP and NDP, and is served."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether

from tests.e2e.cluster import Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest, put
from tests.lab.netns import wait_for
from tests.lab.topology import ROOT
from tests.lab.xdp import detach

VIP4, VIP6, TAKEN = "10.77.0.100", "fd77::100", "10.77.0.101"
POOLS = """\
pools:
- {name: lan, addresses: [10.77.0.100-10.77.0.120, "fd77::100/120"], announce: [l2]}
l2: {restartGrace: 6s}
"""


def balanced(manifest: Manifest, *ingress: str, **spec: object) -> list[dict[str, object]]:
    """Return the objects of a Service of type LoadBalancer that has these addresses."""
    service, *slices = manifest.objects()
    service["spec"] |= {"type": "LoadBalancer", **spec}
    service["status"] = {"loadBalancer": {"ingress": [{"ip": ip} for ip in ingress]}}
    return [service, *slices]


def write(cluster: Cluster, manifest: Manifest, *ingress: str, **spec: object) -> None:
    put(cluster.folder, f"{manifest.name}.yaml", yaml.safe_dump_all(balanced(manifest, *ingress, **spec)))


def rows(cluster: Cluster) -> dict[str, dict[str, object]]:
    return {row["address"]: row for row in cluster.agent.json("vip", "list")}


def until(cluster: Cluster, address: str, state: str) -> dict[str, object]:
    wait_for(lambda: rows(cluster).get(address, {}).get("state") == state, f"{address} {state}", 20)
    return rows(cluster)[address]


def forget_neighbours(cluster: Cluster) -> None:
    cluster.client.ip("neigh flush dev c0 nud all")


@pytest.fixture
def pools(tmp_path: Path) -> Path:
    path = tmp_path / "pools.yaml"
    path.write_text(POOLS)
    return path


@pytest.fixture(params=["xdp", "tc"])
def announcing(request: pytest.FixtureRequest, fresh: Callable[..., Cluster], pools: Path) -> Iterator[Cluster]:
    """A running agent that announces an address of each family."""
    made = fresh(request.param, "--announce", str(pools))
    write(made, made.web(), VIP4, VIP6)
    made.agent.start()
    for address in (VIP4, VIP6):
        until(made, address, "announced")
    return made


def test_a_link_by_which_xdp_cannot_send(fresh: Callable[..., Cluster], pools: Path) -> None:
    """The other end of a veth that does not poll accepts no frame of an XDP program: tc answers."""
    made = fresh("xdp", "--announce", str(pools))
    detach(made.client, "c0")
    write(made, made.web(), VIP4, VIP6)
    made.agent.start()
    for address in (VIP4, VIP6):
        until(made, address, "announced")
        time.sleep(0.1)  # unsolicited announcements come at most once per second
        for _ in range(3):
            forget_neighbours(made)
            assert made.client.call(traffic.http_get, address, 80).backend in ("b1", "b2", "b3")


def test_a_client_finds_the_address_and_is_served(announcing: Cluster) -> None:
    mac = announcing.lab.node.mac("wan").hex(":")
    for address in (VIP4, VIP6):
        forget_neighbours(announcing)
        assert announcing.client.call(traffic.http_get, address, 80).backend in ("b1", "b2", "b3")
        argv = ["ip", "-n", announcing.client.name, "-j", "neigh", "show", address, "dev", "c0"]
        found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        assert found[0]["lladdr"] == mac
    row = rows(announcing)[VIP4]
    assert row == {
        "address": VIP4,
        "pool": "lan",
        "mode": "l2",
        "state": "announced",
        "node": "demo-node",
        "services": ["e2e/web"],
        "reason": "",
    }
    metrics = announcing.agent.api.metrics()
    assert f'lbagent_vip_announced{{address="{VIP4}",mode="l2"}} 1' in metrics
    assert "lbagent_vip_takeovers_total 0" in metrics


def test_the_end_of_the_agent_is_not_noticed(announcing: Cluster) -> None:
    asks = [partial(traffic.http_get, address, 80) for address in (VIP4, VIP6)]
    with traffic.Load(announcing.client, asks, 2, 0.01) as load:
        announcing.agent.kill()
        for _ in range(10):
            forget_neighbours(announcing)
            time.sleep(0.1)
        announcing.agent.start()
        until(announcing, VIP4, "announced")
        for _ in range(10):
            forget_neighbours(announcing)
            time.sleep(0.1)
    assert not load.tally.failures, load.tally
    assert load.tally.total > 50


def test_an_agent_that_stays_away_answers_no_longer_than_its_grace(announcing: Cluster) -> None:
    announcing.agent.kill()
    ended = time.monotonic()

    def is_asked_in_vain() -> bool:
        forget_neighbours(announcing)
        try:
            announcing.client.call(traffic.http_get, VIP4, 80, timeout_s=1.5)
        except OSError:
            return True
        return False

    wait_for(is_asked_in_vain, "no answer", 30)
    assert time.monotonic() - ended > 3


def test_an_address_that_a_stranger_has_is_not_announced(fresh: Callable[..., Cluster], pools: Path) -> None:
    cluster = fresh("xdp", "--announce", str(pools))
    cluster.client.ip(f"addr add {TAKEN}/32 dev c0")
    write(cluster, cluster.web(), TAKEN)
    cluster.agent.start()
    row = until(cluster, TAKEN, "conflict")
    assert cluster.client.mac("c0").hex(":") in str(row["reason"])
    assert cluster.agent.cli("vip", "why", TAKEN, check=False).returncode == 1
    found = cluster.agent.cli("vip", "why", "e2e/web", check=False)
    assert found.returncode == 1
    assert "is in use: the host with the MAC address" in found.stdout


def test_why_says_what_it_knows(announcing: Cluster) -> None:
    agent = announcing.agent
    assert agent.cli("vip", "why", VIP4).stdout == f"{VIP4} (l2, pool lan): announced from demo-node, this node\n"
    assert agent.cli("vip", "why", "e2e/web").stdout.count("announced from demo-node") == 2
    for unknown in ("192.0.2.1", "e2e/nothing"):
        assert agent.cli("vip", "why", unknown, check=False).returncode == 3
    free = agent.cli("vip", "why", "10.77.0.120", check=False)
    assert (free.returncode, "no Service has this address" in free.stdout) == (1, True)


def test_what_no_object_wants_any_more_is_withdrawn(announcing: Cluster) -> None:
    write(announcing, announcing.web(), VIP6)
    wait_for(lambda: VIP4 not in rows(announcing), "the end of the address", 20)
    forget_neighbours(announcing)
    with pytest.raises(OSError):
        announcing.client.call(traffic.http_get, VIP4, 80, timeout_s=1.5)
    assert announcing.client.call(traffic.http_get, VIP6, 80)


def test_policy_local_without_an_endpoint_here_withdraws(announcing: Cluster) -> None:
    write(announcing, announcing.web("b1"), VIP4, externalTrafficPolicy="Local")
    row = until(announcing, VIP4, "withdrawn")
    assert row["reason"] == "policy Local, and no ready endpoint is on this node"
    write(announcing, announcing.web("b1", "b3"), VIP4, externalTrafficPolicy="Local")
    until(announcing, VIP4, "announced")


def test_policy_local_with_the_only_endpoint_here_in_maintenance_withdraws(announcing: Cluster) -> None:
    """The other family depends on its own endpoints; another endpoint is ready on another node."""
    write(announcing, announcing.web("b1", "b3"), VIP4, VIP6, externalTrafficPolicy="Local")
    wait_for(lambda: {row["state"] for row in rows(announcing).values()} == {"announced"}, "both", 20)
    announcing.agent.cli("backend", "set-state", "maintenance", "10.244.0.2:8080")
    row = until(announcing, VIP4, "withdrawn")
    assert row["reason"] == "policy Local, and the programs of this node send no new connections to the endpoints here"
    assert "clear-state" in announcing.agent.cli("vip", "why", VIP4, check=False).stdout
    assert rows(announcing)[VIP6]["state"] == "announced"
    forget_neighbours(announcing)
    assert announcing.client.call(traffic.http_get, VIP6, 80).backend == "b3"
    announcing.agent.cli("backend", "clear-state", "10.244.0.2:8080")
    until(announcing, VIP4, "announced")


def test_policy_local_judges_each_family_by_its_own_endpoints(announcing: Cluster) -> None:
    web = announcing.web("b1", "b3")
    moved = [replace(each, node="node-b1") if ":" in each.address else each for each in web.endpoints]
    write(announcing, replace(web, endpoints=moved), VIP4, VIP6, externalTrafficPolicy="Local")
    row = until(announcing, VIP6, "withdrawn")
    assert row["reason"] == "policy Local, and no ready endpoint is on this node"
    assert rows(announcing)[VIP4]["state"] == "announced"


def test_policy_local_with_a_last_endpoint_that_terminates_and_serves_goes_on(announcing: Cluster) -> None:
    """KEP-1669: clients are served during the whole termination."""
    web = announcing.web("b3")
    write(announcing, web, VIP4, externalTrafficPolicy="Local")
    wait_for(lambda: VIP6 not in rows(announcing), "the change", 20)
    until(announcing, VIP4, "announced")
    mac = announcing.lab.node.mac("wan")
    with traffic.Load(announcing.client, [partial(traffic.http_get, VIP4, 80)], 2, 0.01) as load:
        load.wait_more(20)
        ends = [replace(each, ready=False, serving=True, terminating=True) for each in web.endpoints]
        write(announcing, replace(web, endpoints=ends), VIP4, externalTrafficPolicy="Local")
        wait_for(
            lambda: {each["state"] for each in announcing.agent.json("backend", "list")} == {"terminating"},
            "the end",
            20,
        )
        for _ in range(5):
            forget_neighbours(announcing)
            load.wait_more(20)
    assert not load.tally.failures, load.tally
    assert rows(announcing)[VIP4]["state"] == "announced"
    assert announcing.lab.node.mac("wan") == mac
    ended = [replace(each, ready=False, serving=False, terminating=True) for each in web.endpoints]
    write(announcing, replace(web, endpoints=ended), VIP4, externalTrafficPolicy="Local")
    until(announcing, VIP4, "withdrawn")


def send(device: str, *frames: bytes) -> None:
    """Send frames by a device of the entered namespace."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((device, 0))
        for frame in frames:
            sock.send(frame)


def forged_reply(address: str, mac: str) -> bytes:
    return bytes(
        Ether(src="02:66:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / ARP(op=2, hwsrc=mac, psrc=address, pdst=address)
    )


def forged_advertisement(address: str, mac: str) -> bytes:
    body = ICMPv6ND_NA(tgt=address, R=0, S=0, O=1) / ICMPv6NDOptDstLLAddr(lladdr=mac)
    return bytes(
        Ether(src="02:66:00:00:00:01", dst="33:33:00:00:00:01") / IPv6(src=address, dst="ff02::1", hlim=255) / body
    )


def conflicts(cluster: Cluster) -> dict[str, str]:
    found = cluster.agent.json("status")["conditions"]
    return {each["subject"]: each["text"] for each in found if each["name"] == "address-conflict"}


def test_forged_claims_take_no_address_down_and_are_a_condition(announcing: Cluster) -> None:
    """RFC 5227 §2.4 c. Claims of MAC addresses that no host has are ignored."""
    forger = "02:66:00:00:00:01"
    for mac in ("ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "01:00:5e:00:00:01"):
        for _ in range(3):
            announcing.client.call(send, "c0", forged_reply(VIP4, mac), forged_advertisement(VIP6, mac))
    announcing.client.call(send, "c0", forged_reply(VIP4, forger), forged_advertisement(VIP6, forger))
    wait_for(lambda: conflicts(announcing).keys() == {VIP4, VIP6}, "the condition", 20)
    for _ in range(5):
        announcing.client.call(send, "c0", forged_reply(VIP4, forger), forged_advertisement(VIP6, forger))
        time.sleep(0.1)  # each is received separately
    assert all(forger in text for text in conflicts(announcing).values())
    assert {row["state"] for row in rows(announcing).values()} == {"announced"}
    for address in (VIP4, VIP6):
        forget_neighbours(announcing)
        assert announcing.client.call(traffic.http_get, address, 80).backend in ("b1", "b2", "b3")
    assert announcing.agent.log.read_text().count(" another host claims an address ") == 2
    assert announcing.agent.cli("status", check=False).returncode == 1


def test_with_yield_two_claims_take_the_address(fresh: Callable[..., Cluster], pools: Path) -> None:
    pools.write_text(POOLS.replace("restartGrace: 6s", "restartGrace: 6s, conflict: yield"))
    cluster = fresh("tc", "--announce", str(pools))
    write(cluster, cluster.web(), VIP4)
    cluster.agent.start()
    until(cluster, VIP4, "announced")

    def is_given_up() -> bool:
        cluster.client.call(send, "c0", forged_reply(VIP4, "02:66:00:00:00:01"))
        return rows(cluster)[VIP4]["state"] == "conflict"

    wait_for(is_given_up, "the end of the announcement", 20)
    wait_for(lambda: conflicts(cluster).keys() == {VIP4}, "the condition", 20)


def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(announcing: Cluster, pools: Path) -> None:
    pools.write_text(POOLS.replace("announce: [l2]", "announce: [smoke]"))
    wait_for(lambda: "the configuration is not used" in announcing.agent.log.read_text(), "a line in the log", 20)
    assert rows(announcing)[VIP4]["state"] == "announced"
    pools.write_text(POOLS.replace("announce: [l2]", "announce: []"))
    wait_for(lambda: not rows(announcing), "no address", 20)


def test_a_wrong_file_at_the_start_is_a_wrong_configuration(fresh: Callable[..., Cluster], pools: Path) -> None:
    pools.write_text(POOLS.replace("announce: [l2]", "announce: [smoke]"))
    cluster = fresh("tc", "--announce", str(pools))
    done = subprocess.run(
        cluster.lab.node.command(cluster.agent.argv()), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    assert f"{pools}:2: pools[0].announce[0]: unknown value 'smoke'" in done.stderr


def test_the_device_takes_solicitations_until_cleanup(announcing: Cluster) -> None:
    """A real one drops groups that are not in its filter; the entry of the filter outlives the agent."""

    def groups() -> str:
        argv = ["ip", "-n", announcing.lab.node.name, "maddr", "show", "dev", "wan"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert "33:33:ff:00:01:00" in groups()
    announcing.agent.kill()
    assert "33:33:ff:00:01:00" in groups()
    announcing.agent.cli("cleanup")
    assert "33:33:ff:00:01:00" not in groups()
