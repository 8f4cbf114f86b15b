"""`health-check: passive`: a backend whose node drops SYNs takes no new flow for a while, by the flows of clients alone."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from lbagent.targets.bpf.packet_frame import TCP, Tuple, make_frame
from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.e2e.conftest import opened
from tests.e2e.test_backend_checks import metric, row_of, takes_flows
from tests.lab.netns import run, wait_for
from tests.lab.topology import HTTP_PORT

ALL, WITHOUT_B1 = {"b1", "b2", "b3"}, {"b2", "b3"}
B1 = {VIP4: "10.77.1.2:8080/TCP", VIP6: "[fd77:1::2]:8080/TCP"}
CLIENTS = {
    VIP4: ["10.77.0.2", *(f"10.77.0.{n}" for n in range(21, 24))],
    VIP6: ["fd77::2", *(f"fd77::{n}" for n in range(21, 24))],
}


@pytest.fixture(scope="module", params=["xdp", "tc"])
def observed(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with opened(request.param, ["--handshake-sample", "1"]) as cluster:
        for address in CLIENTS[VIP4][1:]:
            cluster.client.ip(f"addr add {address}/24 dev c0")
        for address in CLIENTS[VIP6][1:]:
            cluster.client.ip(f"addr add {address}/64 dev c0 nodad")
        cluster.lab.freeze_clients({4: CLIENTS[VIP4][1:], 6: CLIENTS[VIP6][1:]})
        cluster.web(annotations={"lbagent.io/health-check": "passive"}).write(cluster.folder)
        cluster.agent.start()
        wait_for(lambda: takes_flows(cluster) == ALL, "all backends")
        yield cluster


@contextlib.contextmanager
def dropping_syns(cluster: Cluster, name: str) -> Iterator[None]:
    """Let a backend's kernel drop each SYN: no answer of any kind."""
    space = cluster.lab.namespaces[name]
    rules = (
        "add table inet silent; add chain inet silent in { type filter hook prerouting priority -300; }; "
        f"add rule inet silent in tcp dport {HTTP_PORT} tcp flags & (syn | ack) == syn drop"
    )
    run(*space.command(["nft", rules]))
    try:
        yield
    finally:
        run(*space.command(["nft", "delete table inet silent"]))


def connect(cluster: Cluster, vip: str, clients: Sequence[str], count: int, seconds: float) -> None:
    """Open connections from these addresses at once, and keep their sockets for a time: the kernel repeats SYNs."""
    family = socket.AF_INET6 if ":" in vip else socket.AF_INET
    with cluster.client.entered(), contextlib.ExitStack() as closing:
        for number in range(count):
            sock = closing.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.bind((clients[number % len(clients)], 0))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect((vip, 80))
        time.sleep(seconds)


def is_out(cluster: Cluster, vip: str) -> bool:
    return str(row_of(cluster, B1[vip])["state"]) == "quarantined"


def wait_all(cluster: Cluster) -> None:
    """Wait for the end of what earlier tests put out: the time doubles with each."""
    wait_for(lambda: takes_flows(cluster) == ALL, "all backends", 120)


FAILS = "fails its health check (passive)"  # a line of `status`, soon after the backend is out


class SeenOut(NamedTuple):
    """What is seen while b1 is out."""

    row: dict[str, Any]
    up: dict[str, float]
    times_out: dict[str, float]
    answers: set[str]
    text: str  # of `status`


def seen_out(cluster: Cluster, vip: str) -> SeenOut | None:
    """Let clients connect, and look while b1 is out; nothing if it is not, or returned meanwhile: then it is tried again."""
    connect(cluster, vip, CLIENTS[vip], 60, 3.0)
    if not is_out(cluster, vip):
        return None
    with contextlib.suppress(TimeoutError):
        found = SeenOut(
            row_of(cluster, B1[vip]),
            metric(cluster, "lbagent_backend_check_up"),
            metric(cluster, "lbagent_backend_passive_out_total"),
            set(cluster.http(40, vips=[vip])),
            "",
        )
        while is_out(cluster, vip):
            found = found._replace(text=cluster.agent.cli("status", check=False).stdout)
            if FAILS in found.text and is_out(cluster, vip):
                return found
    return None


@pytest.mark.parametrize("vip", [VIP4, VIP6], ids=["ipv4", "ipv6"])
def test_a_backend_that_answers_no_syn_is_out_and_returns(observed: Cluster, vip: str) -> None:
    wait_all(observed)
    with dropping_syns(observed, "b1"):
        found = wait_for(lambda: seen_out(observed, vip), "b1 out", 120)
    row = found.row
    assert (row["check"]["type"], row["check"]["state"]) == ("passive", "down")
    assert "clients" in row["check"]["error"]
    labels = f'{{service="e2e/web",backend="{B1[vip]}"}}'
    assert found.up[labels] == 0
    assert found.times_out[labels] >= 1
    assert found.answers == WITHOUT_B1
    assert re.search(r" [34] clients\b", found.text)  # three are enough: it may be out before the fourth is counted
    assert "it takes no new flow until then" in found.text  # the message that is the Event, too
    wait_for(lambda: not is_out(observed, vip), "b1 back", 120)
    assert set(observed.http(60, vips=[vip])) == ALL


def test_a_single_client_puts_nothing_out(observed: Cluster) -> None:
    wait_all(observed)
    with dropping_syns(observed, "b1"):
        connect(observed, VIP4, CLIENTS[VIP4][:1], 60, 4.0)
        connect(observed, VIP4, CLIENTS[VIP4][:1], 30, 3.0)
        assert not is_out(observed, VIP4)


def test_all_backends_silent_puts_nothing_out(observed: Cluster) -> None:
    """The node, or its network, is the more probable cause."""
    wait_all(observed)
    with contextlib.ExitStack() as stack:
        for name in sorted(ALL):
            stack.enter_context(dropping_syns(observed, name))
        connect(observed, VIP4, CLIENTS[VIP4], 60, 6.5)
        assert takes_flows(observed) == ALL


def test_the_operator_s_word_wins(observed: Cluster) -> None:
    wait_all(observed)
    observed.agent.cli("backend", "set-state", B1[VIP4], "active")
    try:
        with dropping_syns(observed, "b1"):

            def is_down() -> bool:
                connect(observed, VIP4, CLIENTS[VIP4], 60, 3.0)
                return bool(row_of(observed, B1[VIP4])["check"]["state"] == "down")

            wait_for(is_down, "the check of b1", 60)
            assert not is_out(observed, VIP4)
    finally:
        observed.agent.cli("backend", "clear-state", B1[VIP4])


def test_a_flood_of_forged_syns_puts_no_healthy_backend_out(observed: Cluster) -> None:
    """Each forged SYN comes twice, from many sources: the backends answer, and the flood is all that there is."""
    wait_all(observed)
    observed.lab.node.ip("route replace 198.51.100.0/24 via 10.77.0.2")
    with observed.client.entered(), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        for _ in range(3):
            for number in range(200):
                sock.sendto(forged_syn(f"198.51.100.{number % 250 + 1}", 20000 + number), (VIP4, 0))
            time.sleep(1.2)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        assert takes_flows(observed) == ALL
        time.sleep(0.2)


def forged_syn(source: str, port: int) -> bytes:
    """Return the IP packet of a SYN to the VIP."""
    packed = [socket.inet_aton(each) for each in (source, VIP4)]
    return make_frame(Tuple(TCP, packed[0], port, packed[1], 80), bytes(12))[14:]
