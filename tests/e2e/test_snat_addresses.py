"""More connections to one backend than SNAT ports: extra SNAT addresses of the node carry them (--snat-address)."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.e2e.cluster import WEB, Cluster
from tests.lab import traffic
from tests.lab.netns import wait_for

pytestmark = pytest.mark.early

PORTS = ("--snat-ports", "2000-2063")
FIRST, EXTRA_SNAT, LATE = ("10.77.1.1", "fd77:1::1"), ("10.77.1.77", "fd77:1::77"), ("10.77.1.79", "fd77:1::79")
# Connections of a family. An address has 64 ports, and a search of 16: one that fewer hold always gives another one.
EACH = 70
MORE = 60  # for all ports of two addresses and some of a third one
FEW = 15  # for the rest of the first address, which many have searched in vain, and some of the next one
EXHAUST_S = 0.5  # a connection for which no port is there ends so early


def options(*addresses: str) -> tuple[str, ...]:
    """Return the flags of these extra SNAT addresses."""
    return tuple(word for address in addresses for word in ("--snat-address", address))


def add(cluster: Cluster, *addresses: str, how: str = "add") -> None:
    """Give the node addresses on the device that leads to b1, or take them away."""
    for address in addresses:
        rest = "/64 dev lan1 nodad preferred_lft 0" if ":" in address else "/24 dev lan1"
        cluster.lab.node.ip(f"addr {how} {address}{rest}")


def connect(cluster: Cluster, vip: str, count: int, timeout_s: float = traffic.TIMEOUT_S) -> list[socket.socket]:
    """Open so many connections; those that do not come about in time are left out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    out = []
    with cluster.client.entered():
        for _ in range(count):
            with contextlib.suppress(TimeoutError):
                out.append(traffic.connect(vip, 80, timeout_s=timeout_s))
                out[-1].settimeout(traffic.TIMEOUT_S)
    return out


def seen_as(sockets: Sequence[socket.socket]) -> Counter[str]:
    """Ask by every connection; return as whom the backend sees them."""
    return Counter(traffic.request(sock).decode().split()[1] for sock in sockets)


def flows(cluster: Cluster, address: str) -> int:
    """Return the live flows of a backend."""
    (found,) = (each["flows"] for each in cluster.agent.json("backend", "list") if each["address"] == address)
    return int(found)


def conditions(cluster: Cluster) -> dict[str, str]:
    """Return the conditions by name and subject."""
    return {f"{each['name']} {each['subject']}": each["text"] for each in cluster.agent.api.status()["conditions"]}


def metric(cluster: Cluster, start: str) -> float:
    """Return the value of a metric's only sample that begins so."""
    (line,) = (line for line in cluster.agent.api.metrics().splitlines() if line.startswith(start))
    return float(line.split()[-1])


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_one_backend_has_more_connections_than_ports(fresh: Callable[..., Cluster], attach: str) -> None:
    """All come about, and live on over a restart with more addresses; with one less only those of that one end."""
    cluster = fresh(attach, *PORTS, *options(*EXTRA_SNAT))
    add(cluster, *EXTRA_SNAT)
    cluster.web("b1").write(cluster.folder)
    cluster.agent.start()
    sockets = {vip: connect(cluster, vip, EACH) for vip in WEB}
    for number, vip in enumerate(WEB):
        seen = seen_as(sockets[vip])
        assert len(sockets[vip]) == EACH
        assert set(seen) == {FIRST[number], EXTRA_SNAT[number]}
        assert seen[FIRST[number]] <= 64
    wait_for(
        lambda: flows(cluster, "10.77.1.2:8080/TCP") == EACH, "the flows of both addresses"
    )  # counts may be a second old
    assert metric(cluster, 'lbagent_snat_further_addresses{family="ipv4"}') == 1
    assert metric(cluster, 'lbagent_backend_packets_total{backend="10.77.1.2:8080/TCP"}') > 4 * EACH
    assert cluster.agent.cli("verify", check=False).returncode == 0
    before = {vip: seen_as(sockets[vip]) for vip in WEB}

    cluster.agent.stop()
    add(cluster, *LATE)
    # in another order: those that are there keep their numbers
    cluster.agent.arguments = [*PORTS, *options(*LATE, *EXTRA_SNAT)]
    cluster.agent.start()
    assert {vip: seen_as(sockets[vip]) for vip in WEB} == before
    more = connect(cluster, WEB[0], MORE)
    assert len(more) == MORE
    assert LATE[0] in seen_as(more)

    cluster.agent.stop()
    cluster.agent.arguments = [*PORTS, *options(*LATE)]
    cluster.agent.start()
    for number, vip in enumerate(WEB):
        ended = 0
        for sock in sockets[vip]:
            try:
                assert traffic.request(sock).split()[1].decode() == FIRST[number]
            except OSError:
                ended += 1
        assert ended == before[vip][EXTRA_SNAT[number]]
    assert cluster.agent.cli("verify", check=False).returncode == 0
    for sock in (*more, *(sock for each in sockets.values() for sock in each)):
        sock.close()


def test_an_address_that_the_node_lacks(fresh: Callable[..., Cluster]) -> None:
    """It is named, and not used until it is there; without it the limit is named with what raises it."""
    cluster = fresh("xdp", *PORTS, *options(*EXTRA_SNAT))
    add(cluster, EXTRA_SNAT[1])
    cluster.web("b1").write(cluster.folder)
    cluster.agent.start()
    name = f"snat-address-missing {EXTRA_SNAT[0]}"
    assert [each for each in conditions(cluster) if each.startswith("snat-address")] == [name]
    done = cluster.agent.cli("status", check=False)
    assert done.returncode == 1
    assert f"no device of this node has {EXTRA_SNAT[0]} (--snat-address): it is not used" in done.stdout
    first = connect(cluster, WEB[0], 80, EXHAUST_S)
    assert len(first) <= 64
    assert set(seen_as(first)) == {FIRST[0]}
    wait_for(lambda: "snat-ports-short 10.77.1.2:8080/TCP" in conditions(cluster), "the limit in the status", 30)
    assert "--snat-address" in cluster.agent.cli("status", check=False).stdout
    words = ["doctor", *PORTS, *options(*EXTRA_SNAT), "--bpffs", str(cluster.lab.bpffs)]
    doctor = cluster.agent.cli(*words, check=False).stdout
    assert f"no device of this node has {EXTRA_SNAT[0]} (--snat-address): it is not used" in doctor
    assert f"--snat-address {EXTRA_SNAT[1]}: device lan1 has it" in doctor
    assert "backend 10.77.1.2:8080/TCP is short of SNAT ports" in doctor
    assert "add an address to device lan1 and to --snat-address" in doctor

    add(cluster, EXTRA_SNAT[0])
    wait_for(lambda: name not in conditions(cluster), "the condition gone")
    more = connect(cluster, WEB[0], FEW)
    assert len(more) == FEW
    assert EXTRA_SNAT[0] in seen_as(more)

    add(cluster, EXTRA_SNAT[0], how="del")
    wait_for(lambda: name in conditions(cluster), "the condition back")
    for sock in (*first, *more):
        sock.close()


def test_a_reload_takes_addresses_over(fresh: Callable[..., Cluster]) -> None:
    """SIGHUP is enough, and no connection notices."""
    cluster = fresh("tc", *PORTS)
    add(cluster, *EXTRA_SNAT)
    cluster.web("b1").write(cluster.folder)
    file = cluster.lab.folder / "lbagent.yaml"
    file.write_text("reject-rate: 1000\n")
    cluster.agent.arguments += ["--config", str(file)]
    cluster.agent.start()
    first = connect(cluster, WEB[0], 80, EXHAUST_S)
    assert len(first) <= 64
    file.write_text(f"snat-address: [{EXTRA_SNAT[0]}]\n")
    assert cluster.agent.process is not None
    cluster.agent.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "lbagent_snat_further_addresses" in cluster.agent.api.metrics(), "the metric")
    wait_for(lambda: metric(cluster, 'lbagent_snat_further_addresses{family="ipv4"}') == 1, "the address", 90)
    more = connect(cluster, WEB[0], FEW)
    assert len(more) == FEW
    assert EXTRA_SNAT[0] in seen_as(more)
    assert set(seen_as(first)) == {FIRST[0]}
    for sock in (*first, *more):
        sock.close()


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_connections_outlive_another_range_of_ports(fresh: Callable[..., Cluster], attach: str) -> None:
    """New connections have ports of the new range; those of the old one go on, also over a restart and a range between."""
    cluster = fresh(attach)
    cluster.web("b1").write(cluster.folder)
    file = cluster.lab.folder / "lbagent.yaml"
    file.write_text("snat-ports: 2000-2999\n")
    cluster.agent.arguments += ["--config", str(file)]
    cluster.agent.start()
    opened = connect(cluster, WEB[0], 10) + connect(cluster, WEB[1], 10)
    for number, ports in enumerate((range(40000, 40500), range(1100, 1200), range(41000, 41100))):
        file.write_text(f"snat-ports: {ports.start}-{ports.stop - 1}\n")
        if number == 1:
            cluster.agent.kill()
            cluster.agent.start()
        else:
            assert cluster.agent.process is not None
            cluster.agent.process.send_signal(signal.SIGHUP)

        def is_in_force(wanted: range = ports) -> bool:
            opened.extend(connect(cluster, WEB[0], 1) + connect(cluster, WEB[1], 1))
            flows = cluster.agent.json("flow", "list")
            found = [int(flow["snat"].rpartition(":")[2]) for flow in flows if flow["snat"]]
            return len(found) == len(opened) and sum(port in wanted for port in found) >= 2

        wait_for(is_in_force, f"connections from the ports {ports}", 60)
        assert sum(seen_as(opened).values()) == len(opened)
    for sock in opened:
        sock.close()
