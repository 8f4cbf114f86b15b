"""`lbagent flow` over the flows of real sockets in namespaces."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lbagent.maps.kernel_maps import KernelMaps
from tests.agent.test_without_rights import as_nobody
from tests.e2e.cluster import VIP4, VIP6, WEB, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest
from tests.lab.netns import wait_for

pytestmark = pytest.mark.early

ADDRESS = {"b1": ("10.77.1.2", "fd77:1::2"), "b2": ("10.77.2.2", "fd77:2::2"), "b3": ("10.244.0.2", "fd44::2")}
KEYS = (
    "family", "protocol", "client", "frontend", "service", "backend", "backend_id", "mode", "snat", "state", "idle_s",
    "expires_in_s", "spilled",
)  # fmt: skip


def shown(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def flows(cluster: Cluster, *words: str, proto: str = "tcp") -> list[dict[str, Any]]:
    """Return the flows of a protocol: a datagram of an earlier test may have had the port of a connection."""
    found = cluster.agent.json("flow", "list", *words, "--proto", proto)
    assert isinstance(found, list)
    return found


@pytest.fixture
def talk(served: Cluster) -> Iterator[Callable[..., tuple[socket.socket, str, str]]]:
    """Open a connection; return it, the client's address and the name of its backend."""
    with ExitStack() as stack:

        def opened(vip: str) -> tuple[socket.socket, str, str]:
            with served.client.entered():
                sock = stack.enter_context(traffic.connect(vip, 80))
            name = traffic._answer(traffic.request(sock)).backend
            return sock, shown(*sock.getsockname()[:2]), name

        yield opened


def test_a_connection_is_listed_as_its_sockets_see_it(served: Cluster, talk: Callable[..., Any]) -> None:
    """Client, frontend, backend, state, and as which address the backend sees the client."""
    for number, vip in enumerate(WEB):
        seen = set()
        while seen != {"b1", "b2", "b3"}:
            sock, client, name = talk(vip)
            seen.add(name)
            (row,) = flows(served, "--client", client)
            assert tuple(row) == KEYS
            backend = shown(ADDRESS[name][number], 8080)
            facts = {
                key: row[key] for key in ("family", "protocol", "frontend", "service", "backend", "state", "spilled")
            }
            assert facts == {
                "family": ("ipv4", "ipv6")[number], "protocol": "TCP", "frontend": f"{shown(vip, 80)}/TCP",
                "service": "e2e/web", "backend": f"{backend}/TCP", "state": "established", "spilled": False,
            }  # fmt: skip
            assert 0 <= row["idle_s"] <= 5
            assert 7900 < row["expires_in_s"] <= 8000
            listed = {each["address"]: each["id"] for each in served.agent.api.backends()}
            assert row["backend_id"] == listed[f"{backend}/TCP"]
            wait_for(
                lambda name=name, backend=backend, client=client, row=row: (
                    peer_of(served, name, backend, client) == (row["snat"] or client)
                ),
                "the end of older connections of this backend",
            )
            assert row["mode"] == ("local" if name == "b3" else "snat")
            assert served.agent.json("flow", "get", client, shown(vip, 80)) | {"idle_s": 0, "expires_in_s": 0} == row | {
                "idle_s": 0, "expires_in_s": 0,
            }  # fmt: skip
            sock.close()


def peer_of(cluster: Cluster, name: str, local: str, client: str) -> str:
    """Return the only peer with which the backend's own kernel shows an established connection that is `client`'s, or the node's."""
    done = subprocess.run(
        cluster.lab.namespaces[name].command(["ss", "-Htn", "state", "established"]),
        capture_output=True,
        text=True,
        check=True,
    )
    peers = [words[3] for line in done.stdout.splitlines() if (words := line.split())[2] == local]
    return client if client in peers else peers[-1]


def test_the_table_and_names(served: Cluster, talk: Callable[..., Any]) -> None:
    _, client, name = talk(VIP4)
    done = served.agent.cli("flow", "list", "--proto", "tcp", "--client", client).stdout.splitlines()
    assert done[0].split() == ["PROTO", "CLIENT", "FRONTEND", "BACKEND", "STATE", "IDLE", "SERVICE"]
    cells = done[1].split()
    assert cells[:5] == ["TCP", client, "10.96.0.10:80", f"{ADDRESS[name][0]}:8080", "established"]
    assert re.fullmatch(r"\ds", cells[5])
    assert cells[6] == "e2e/web"
    named = served.agent.cli("flow", "list", "--proto", "tcp", "--client", client, "-o", "name").stdout
    assert named == f"{client} 10.96.0.10:80/TCP\n"
    assert client in served.agent.cli("flow", "get", *named.split()).stdout


def test_states_and_counts(served: Cluster, talk: Callable[..., Any]) -> None:
    """A connection that both sides have closed is listed as closing, and no count has it."""
    wait_for(
        lambda: served.agent.json("flow", "count", "--service", "e2e/web") == {"flows": 0}, "the end of others", 60
    )
    opened = [talk(vip) for vip in (VIP4, VIP4, VIP6, VIP6, VIP6)]
    assert served.agent.json("flow", "count", "--service", "e2e/web") == {"flows": 5}
    by_backend = {each["key"]: each["flows"] for each in served.agent.json("flow", "count", "--by", "backend")}
    now = Counter(name for _, _, name in opened[:2])
    for name, number in now.items():
        assert by_backend[f"{ADDRESS[name][0]}:8080/TCP"] >= number
    sock, client, _ = opened[0]
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(4096):
        pass
    sock.close()
    wait_for(lambda: flows(served, "--client", client)[0]["state"] == "closing", "a closed connection")
    assert served.agent.json("flow", "count", "--service", "e2e/web") == {"flows": 4}
    assert served.agent.json("flow", "count", "--proto", "tcp", "--client", client, "--state", "closing") == {
        "flows": 1
    }
    assert served.agent.cli("flow", "count", "--proto", "tcp", "--client", client).stdout == "0\n"


def test_a_flow_without_an_answer_is_new(served: Cluster) -> None:
    """No process of the backends has this port."""
    silent = Manifest("silent", ("10.96.7.7",), served.endpoints("b1", port=9)[:1], port=9, protocol="UDP")
    served.serve(silent)
    with served.client.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("10.96.7.7", 9))
        sock.send(b"to a closed port")
        client = shown(*sock.getsockname())
        (row,) = wait_for(lambda: flows(served, "--client", client, proto="udp"), "the flow")
        assert (row["protocol"], row["state"], row["frontend"]) == ("UDP", "new", "10.96.7.7:9/UDP")
        assert 50 < row["expires_in_s"] <= 60


def test_nothing_changes_by_looking(served: Cluster, talk: Callable[..., Any]) -> None:
    """Of no map, and without an agent: the sweeper would free expired flows meanwhile."""
    _, client, _ = talk(VIP4)
    talk(VIP6)
    served.agent.stop()
    try:
        before = settled_contents(served)
        (row,) = flows(served, "--client", client)
        assert row["frontend"] == "10.96.0.10:80/TCP"
        for words in (
            ("list",),
            ("count",),
            ("count", "--by", "client"),
            ("get", client, f"{VIP4}:80"),
            ("list", "-o", "wide"),
        ):
            served.agent.cli("flow", *words)
        assert contents(served) == before
        done = served.agent.cli("flow", "get", client, f"{VIP4}:81", check=False)
        assert (done.returncode, done.stdout) == (3, "")
    finally:
        served.agent.start()


OF_PACKETS = ("lb_scratch", "lb_metrics", "lb_ratelimit", "lb_datagram")  # neighbour discovery continues meanwhile


def contents(cluster: Cluster) -> dict[str, object]:
    """Return the entries of every map that packets of no flow leave unchanged."""
    with KernelMaps.open(str(cluster.lab.bpffs), create=False) as maps:
        return {name: maps.items(name) for name in maps.specs if "maglev" not in name and name not in OF_PACKETS}


def settled_contents(cluster: Cluster) -> dict[str, object]:
    """Return the entries once they stay: the last packets of connections may be on their way."""
    found = contents(cluster)

    def stay() -> bool:
        nonlocal found
        time.sleep(0.5)
        before, found = found, contents(cluster)
        return found == before

    wait_for(stay, "the last packets", 30)
    return found


def test_deletion_of_one_backend_while_traffic_runs(served: Cluster) -> None:
    """Its clients are reset; connections to other backends continue, and so do new ones."""
    talkers = served.talkers(60)
    address = f"{ADDRESS['b1'][0]}:8080"
    try:
        assert {"b1", "b2", "b3"} <= set(talkers.first)
        on_b1 = talkers.first.count("b1")
        with served.load(web=False) as load:
            assert served.agent.json("flow", "delete", "--backend", address, "--dry-run")["deleted"] >= on_b1
            assert talkers.ask() == talkers.first
            assert served.agent.json("flow", "delete", "--backend", address, "--reset")["deleted"] >= on_b1
            load.wait_more(50)
        assert len(load.tally.failures) <= 4, "a request to b1 of each worker may have been in progress"
        assert served.agent.json("flow", "count", "--backend", address) == {"flows": 0}
        for first, now in zip(talkers.first, talkers.ask(), strict=True):
            assert now.startswith("ConnectionResetError") if first == "b1" else now == first
    finally:
        talkers.close()
    assert "b1" in served.http(60)


def test_a_deleted_connection_begins_again(served: Cluster, talk: Callable[..., Any]) -> None:
    """Its next packet makes a new flow; the SNAT port of the old one is free."""
    _, client, _ = talk(VIP4)
    sock, other, name = talk(VIP6)
    assert served.agent.json("flow", "delete", "--client", client, "--proto", "tcp") == {"deleted": 1}
    assert served.agent.json("flow", "delete", "--client", client, "--proto", "tcp") == {"deleted": 0}
    assert served.agent.cli("flow", "get", client, f"{VIP4}:80", check=False).returncode == 3
    assert flows(served, "--client", other)[0]["state"] == "established"
    assert traffic._answer(traffic.request(sock)).backend == name


def test_deletion_of_everything_while_connections_are_made(served: Cluster) -> None:
    """Again and again: no request gets a wrong answer, and afterwards everything is served as before."""
    with served.load() as load:
        for _ in range(5):
            load.wait_more(20)
            assert served.agent.json("flow", "delete", "--all")["deleted"] > 0
    assert {"b1", "b2", "b3"} <= set(load.tally.answered)
    assert set(served.http(60)) == {"b1", "b2", "b3"}
    assert served.agent.cli("flow", "delete", check=False).returncode == 2
    assert served.agent.json("flow", "count")["flows"] > 0


def test_a_reader_who_may_not_write_the_pins(served: Cluster, talk: Callable[..., Any]) -> None:
    """The kernel maps no array for it, so it reads a copy: the same flows, and nothing to delete."""
    _, client, _ = talk(VIP4)
    talk(VIP6)
    pins = ["--bpffs", str(served.lab.bpffs), "--state-dir", str(served.lab.folder / "state")]

    def reads(*words: str) -> subprocess.CompletedProcess[str]:
        argv = served.lab.node.command(as_nobody("flow", *words, *pins))
        env = {**os.environ, "LBAGENT_SOCKET": str(served.lab.socket)}
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd="/")

    def ends(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[key] for key in ("client", "frontend", "backend", "state")) for row in rows)

    def reads_alike() -> list[tuple[Any, ...]]:
        """Return what both see; nothing while connections of earlier tests end."""
        wanted = ends(flows(served, "--state", "established"))
        listed = reads("list", "--proto", "tcp", "--state", "established", "-o", "json")
        assert listed.returncode == 0, listed.stderr
        count = reads("count", "--proto", "tcp", "--state", "established")
        assert count.returncode == 0, count.stderr
        alike = ends(json.loads(listed.stdout)) == wanted and count.stdout == f"{len(wanted)}\n"
        return wanted if alike else []

    wanted = wait_for(reads_alike, "the same flows", 30)
    assert client in {each[0] for each in wanted}
    deleted = reads("delete", "--all")
    assert deleted.returncode not in (0, 70), deleted.stdout
    assert len(flows(served, "--state", "established")) == len(wanted)
