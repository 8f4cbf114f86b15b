"""`plan -f DIR --live` says what a change costs, and then the change costs just that. It changes nothing itself."""

from __future__ import annotations

import json
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import DNS, VIP4, Cluster
from tests.lab import traffic
from tests.lab.netns import wait_for

Fresh = Callable[..., Cluster]
CONNECTIONS, DATAGRAM_SOCKETS = 60, 60  # so many that each of three backends has some


class Datagrams:
    """UDP clients whose sockets stay open."""

    def __init__(self, made: Cluster) -> None:
        with made.client.entered():
            self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(DATAGRAM_SOCKETS)]
            for sock in self.sockets:
                sock.settimeout(5)
                sock.connect((DNS[0], 53))
        self.first = self.ask()

    def ask(self) -> list[str]:
        return [self._ask(sock) for sock in self.sockets]

    @staticmethod
    def _ask(sock: socket.socket) -> str:
        question = traffic.dns_question()
        sock.send(question)
        return traffic.dns_answer(question, sock.recv(2048)).backend


@contextmanager
def flows(made: Cluster) -> Iterator[tuple[traffic.Talkers, Datagrams]]:
    talkers, datagrams = made.talkers(CONNECTIONS), Datagrams(made)
    try:
        yield talkers, datagrams
    finally:
        talkers.close()
        for sock in datagrams.sockets:
            sock.close()


def plan(made: Cluster, folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    argv = ["plan", "-f", str(folder), "--live", "--node", "demo-node", "--bpffs", str(made.lab.bpffs), *words]
    done = made.agent.cli(*argv, "-o", "json", check=False)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fates(total: int, lost: int = 0, moved: int = 0) -> dict[str, int]:
    return {"total": total, "kept": total - lost - moved, "lost": lost, "moved": moved}


@pytest.mark.parametrize(("renderer", "attach"), [("bpf", "xdp"), ("bpf", "tc"), ("nftables", "tc")])
def test_a_change_costs_what_the_plan_says(fresh: Fresh, tmp_path: Path, renderer: str, attach: str) -> None:
    made = fresh(attach, "--renderer", renderer, "--sweep-interval", "1")
    made.web().write(made.folder)
    made.dns().write(made.folder)
    made.agent.start()
    new = tmp_path / "new"
    shutil.copytree(made.folder, new)
    with flows(made) as (talkers, datagrams):
        by_backend, by_udp = Counter(talkers.first), Counter(datagrams.first)
        assert by_backend["b1"] and by_backend["b2"] and by_udp["b2"]
        same = plan(made, new, "--max-lost", "0")
        assert same == {"changes": [], "unchanged": 4, "flows": fates(CONNECTIONS + DATAGRAM_SOCKETS)}

        made.web("b2", "b3").write(new)
        made.dns("b1", "b3").write(new)
        lost, moved = by_backend["b1"], by_udp["b2"]
        found = plan(made, new)
        assert found["unchanged"] == 0
        assert found["flows"] == fates(CONNECTIONS + DATAGRAM_SOCKETS, lost, moved)
        changes = {change["frontend"]: change for change in found["changes"]}
        assert changes[f"{VIP4}:80/TCP"] == {
            "change": "update",
            "service": "e2e/web",
            "frontend": f"{VIP4}:80/TCP",
            "backends_added": [],
            "backends_removed": ["10.77.1.2:8080/TCP"],
            "flows": fates(CONNECTIONS, lost),
        }
        assert changes[f"{DNS[0]}:53/UDP"]["flows"] == fates(DATAGRAM_SOCKETS, moved=moved)
        lines = made.agent.cli("plan", "-f", str(new), "--live", "--bpffs", str(made.lab.bpffs)).stdout.splitlines()
        share = f"{100 * lost / CONNECTIONS:.3g}"
        kept = f"{CONNECTIONS - lost} kept, {lost} lost ({share} %)"
        assert f"~ e2e/web {VIP4}:80/TCP -10.77.1.2:8080/TCP {CONNECTIONS} flows: {kept}" in lines
        assert lines[-1].startswith(f"4 changes, 0 unchanged: {CONNECTIONS + DATAGRAM_SOCKETS} flows: ")
        plan(made, new, "--max-lost", "1%", code=4)
        plan(made, new, "--max-lost", "99%")
        plan(made, new, "--max-lost", str(lost))
        plan(made, new, "--max-lost", str(lost - 1), code=4)

        assert talkers.ask() == talkers.first, "a plan changes nothing"
        assert datagrams.ask() == datagrams.first
        generation = made.agent.api.status()["generation"]
        if renderer == "bpf":
            made.agent.kill()
            dump = made.agent.dump()
            of_maps = plan(made, new)
            assert of_maps["flows"] == found["flows"]
            assert {each["frontend"]: each["flows"] for each in of_maps["changes"]} == {
                frontend: change["flows"] for frontend, change in changes.items()
            }
            assert made.agent.dump() == dump
            made.agent.start()
        else:
            assert made.agent.api.status()["generation"] == generation

        for path in new.iterdir():
            shutil.copy(path, made.folder / f".{path.name}")
            (made.folder / f".{path.name}").replace(made.folder / path.name)
        made.wait_backends(made.web("b2", "b3"))
        made.wait_backends(made.dns("b1", "b3"))
        after = talkers.ask()
        ended = [first for first, now in zip(talkers.first, after, strict=True) if now != first]
        assert Counter(ended) == {"b1": lost}
        answers = datagrams.ask()
        went = [first for first, now in zip(datagrams.first, answers, strict=True) if now != first]
        assert Counter(went) == {"b2": moved}


def test_frontends_that_come_and_go(fresh: Fresh, tmp_path: Path) -> None:
    made = fresh("tc")
    made.web().write(made.folder)
    made.dns().write(made.folder)
    made.agent.start()
    new = tmp_path / "new"
    shutil.copytree(made.folder, new)
    (new / "web.yaml").unlink()
    made.dns("b1").write(new)
    shop = made.web("b1", "b2")
    shop.name, shop.vips = "shop", ("10.96.0.77", "fd00:96::77")
    shop.write(new)
    with flows(made) as (talkers, datagrams):
        wait_for(lambda: plan(made, new)["flows"]["total"] == CONNECTIONS + DATAGRAM_SOCKETS, "all flows")
        found = plan(made, new)
        words = {change["frontend"]: (change["change"], change["service"]) for change in found["changes"]}
        assert words[f"{VIP4}:80/TCP"] == ("remove", "e2e/web")
        assert words["10.96.0.77:80/TCP"] == ("add", "e2e/shop")
        assert words[f"{DNS[0]}:53/UDP"] == ("update", "e2e/dns")
        moved = sum(name != "b1" for name in datagrams.first)
        assert found["flows"] == fates(CONNECTIONS + DATAGRAM_SOCKETS, CONNECTIONS, moved), (
            "a frontend that goes ends its flows"
        )
        made.agent.cli("backend", "set-state", "maintenance", "10.77.1.2:8080")
        assert plan(made, made.folder)["changes"] == [], "the operator's states are no effect of manifests"
        assert "b1" in talkers.ask()


def test_no_agent_and_no_maps(fresh: Fresh) -> None:
    made = fresh("tc")
    made.web().write(made.folder)
    done = made.agent.cli("plan", "-f", str(made.folder), "--live", "--bpffs", str(made.lab.bpffs), check=False)
    assert done.returncode == 5
    assert done.stdout == ""


def test_the_settings_are_those_of_the_agent(fresh: Fresh, tmp_path: Path) -> None:
    """The same manifests change nothing, whatever the agent's settings are; an option of the command takes precedence."""
    made = fresh("tc", "--local-endpoint-weight", "5", "--no-external-ips")
    made.web(spec={"externalIPs": ["198.51.100.7"]}).write(made.folder)
    made.agent.start()
    same = tmp_path / "same"
    shutil.copytree(made.folder, same)
    assert plan(made, same)["changes"] == []
    other = plan(made, same, "--external-ips")
    assert [(each["change"], each["frontend"]) for each in other["changes"]] == [("add", "198.51.100.7:80/TCP")]
