"""`lbagent flow` lists the flows of the socket programs as the sockets themselves see them."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.e2e.socket_queries import ask_connected, ask_unconnected, family_of, mapped
from tests.lab import traffic
from tests.lab.netns import wait_for

pytestmark = pytest.mark.early

WEB_ADDRESS = {"b1": ("10.77.1.2", "fd77:1::2"), "b2": ("10.77.2.2", "fd77:2::2"), "b3": ("10.244.0.2", "fd44::2")}


@pytest.fixture(scope="module")
def cluster(socket_cluster: Cluster) -> Cluster:
    return socket_cluster


def shown(address: str, port: int) -> str:
    address = address.removeprefix("::ffff:")
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def of_sockets(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    rows = cluster.agent.json("flow", "list", *words)
    return [row for row in rows if row["mode"] == "socket"]


def test_connections(inside: Cluster) -> None:
    """IPv4, IPv6, and an IPv6 socket that uses IPv4; a closed one is gone."""
    for vip in (*WEB, mapped(WEB[0])):
        with traffic.connect(vip, 80) as sock:
            name = traffic._answer(traffic.request(sock)).backend
            number = int(":" in vip and not vip.startswith("::ffff"))
            client, frontend = shown(*sock.getsockname()[:2]), shown(WEB[number], 80)
            (row,) = of_sockets(inside, "--client", client)
            backend = shown(WEB_ADDRESS[name][number], 8080)
            assert row == {
                "family": ("ipv4", "ipv6")[number], "protocol": "TCP", "client": client, "frontend": f"{frontend}/TCP",
                "service": "e2e/web", "backend": f"{backend}/TCP", "backend_id": None, "mode": "socket", "snat": None,
                "state": "established", "idle_s": None, "expires_in_s": None, "spilled": False,
            }  # fmt: skip
            assert inside.agent.json("flow", "get", client, frontend) == row
            assert inside.agent.json("flow", "count", "--client", client) == {"flows": 1}
            assert of_sockets(inside, "--backend", backend, "--client", client, "--service", "e2e/web") == [row]
            assert of_sockets(inside, "--client", client, "--proto", "udp") == []
        wait_for(lambda client=client: of_sockets(inside, "--client", client) == [], "the end of a socket's flow")


def test_datagrams(inside: Cluster) -> None:
    """Of a connected socket, and of one that is bound to no address: it has no client."""
    for number, vip in enumerate(DNS):
        with (
            socket.socket(family_of(vip), socket.SOCK_DGRAM) as connected,
            socket.socket(family_of(vip), socket.SOCK_DGRAM) as other,
        ):
            connected.settimeout(5)
            connected.connect((vip, 53))
            name, _ = ask_connected(connected)
            other_name, _ = ask_unconnected(other, vip)
            rows = of_sockets(inside, "--frontend", shown(vip, 53), f"-{(4, 6)[number]}")
            found = {row["client"]: row["backend"] for row in rows}
            assert found == {
                shown(*connected.getsockname()[:2]): f"{shown(WEB_ADDRESS[name][number], 5353)}/UDP",
                None: f"{shown(WEB_ADDRESS[other_name][number], 5353)}/UDP",
            }
            assert {(row["protocol"], row["state"], row["service"]) for row in rows} == {
                ("UDP", "established", "e2e/dns")
            }
            ids = {each["address"]: each["id"] for each in inside.agent.api.backends()}
            assert all(row["backend_id"] == ids[row["backend"]] for row in rows)


def test_in_another_network_namespace_they_are_left_out_with_a_message(inside: Cluster) -> None:
    with traffic.connect(WEB[0], 80):
        assert of_sockets(inside)
        done = inside.agent.cli("flow", "list", "-o", "json", space=inside.client)
        assert all(row["mode"] != "socket" for row in json.loads(done.stdout))
        assert "network namespace" in done.stderr


def test_a_plan_counts_them(inside: Cluster, tmp_path: Path) -> None:
    """By the rules of all flows: lost with the backend that goes. In another namespace a line says that they are missing."""
    shutil.copytree(inside.folder, tmp_path / "new")
    words = ("plan", "-f", str(tmp_path / "new"), "--live", "--bpffs", str(inside.lab.bpffs))

    def planned() -> dict[str, int]:
        done: dict[str, int] = json.loads(inside.agent.cli(*words, "-o", "json").stdout)["flows"]
        return done

    wait_for(lambda: planned()["total"] == 0, "the end of all other flows", 30)
    with traffic.connect(WEB[0], 80) as sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        name = traffic._answer(traffic.request(sock)).backend
        datagrams.connect((DNS[0], 53))
        other_name, _ = ask_connected(datagrams)
        assert planned() == {"total": 2, "kept": 2, "lost": 0, "moved": 0}
        inside.web(*({"b1", "b2", "b3"} - {name})).write(tmp_path / "new")
        inside.dns(*({"b1", "b2", "b3"} - {other_name})).write(tmp_path / "new")
        assert planned() == {"total": 2, "kept": 0, "lost": 1, "moved": 1}
        assert inside.agent.cli(*words, "--max-lost", "40%", check=False).returncode == 4
        elsewhere = inside.agent.cli(*words, "-o", "json", space=inside.client)
        assert json.loads(elsewhere.stdout)["flows"]["total"] == 0
        assert elsewhere.stderr.startswith("flows of the socket programs are left out")
        assert traffic._answer(traffic.request(sock)).backend == name, "a plan changes nothing"
    wait_for(lambda: planned()["total"] == 0, "the end of both", 30)


def test_a_drain_waits_for_them(inside: Cluster) -> None:
    with traffic.connect(WEB[1], 80) as sock:
        name = traffic._answer(traffic.request(sock)).backend
        backend = f"{shown(WEB_ADDRESS[name][1], 8080)}/TCP"
        words = ("backend", "drain", backend, "--timeout")
        waiting = inside.agent.cli(*words, "1s", check=False)
        assert (waiting.returncode, f"flows are left: {backend} 1" in waiting.stderr) == (6, True), waiting.stderr
        assert next(row["flows"] for row in inside.agent.json("backend", "list") if row["address"] == backend) == 1
    done = inside.agent.cli(*words, "20s")
    assert done.stdout == f"{backend} drained\n"
    inside.agent.cli("backend", "clear-state", backend)
