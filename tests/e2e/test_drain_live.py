"""A drain with live counts: lines, a bar, the end within seconds; the rest is reset; all backends of a node."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, Cluster
from tests.e2e.conftest import opened
from tests.e2e.test_live_plan import Datagrams
from tests.lab.agent import program
from tests.lab.netns import Stopwatch, wait_for
from tests.lab.traffic import Talkers

pytestmark = pytest.mark.early

ADDRESS, NAME, UDP_NAME = "10.77.1.2:8080", "10.77.1.2:8080/TCP", "10.77.1.2:5353/UDP"  # of b1
B1 = ("10.77.1.2", "fd77:1::2")
END_S = 3.0


@pytest.fixture(scope="module", params=["bpf-xdp", "bpf-tc", "nftables-tc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    renderer, attach = request.param.split("-")
    with opened(attach, ["--renderer", renderer, "--timeout-closing", "60"]) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


@pytest.fixture
def talkers(served: Cluster) -> Iterator[list[Talkers]]:
    """One connection each: every backend has some."""
    found = [served.talkers(1) for _ in range(90)]
    wait_for(lambda: flows(served) == at(found, "b1"), "the end of all other flows", 90)
    yield found
    for each in found:
        each.close()
    served.agent.cli("backend", "clear-state", "--node", "node-b1", check=False)
    served.agent.cli("backend", "clear-state", "--node", "node-b2", check=False)


def at(talkers: list[Talkers], name: str) -> int:
    return sum(each.first == [name] for each in talkers)


def close(talkers: list[Talkers], name: str, leave: int = 0) -> None:
    here = [each for each in talkers if each.first == [name]]
    for each in here[: len(here) - leave]:
        each.close()
        talkers.remove(each)


def flows(made: Cluster) -> int:
    return next(int(row["flows"]) for row in made.agent.api.backends() if row["address"] == NAME)


class Command:
    """A command that runs, and its lines of JSON."""

    def __init__(self, made: Cluster, *words: str, **options: Any) -> None:
        env = {**os.environ, "LBAGENT_SOCKET": str(made.lab.socket)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        self.process = made.lab.node.popen([*program(), *words], env=env, **pipes)
        self.lines: list[dict[str, Any]] = []
        self._read = b""

    def wait_line(self, **fields: Any) -> dict[str, Any]:
        """Return the first new line with these fields."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            while b"\n" in self._read:
                line, _, self._read = self._read.partition(b"\n")
                self.lines.append(json.loads(line))
                if fields.items() <= self.lines[-1].items():
                    return self.lines[-1]
            if select.select([self.process.stdout], [], [], 1.0)[0]:
                self._read += os.read(self.process.stdout.fileno(), 65536)
        raise AssertionError(f"no line with {fields} among {self.lines}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def test_json_lines_and_the_end(served: Cluster, talkers: list[Talkers]) -> None:
    total = at(talkers, "b1")
    assert total > 3
    command = Command(served, "backend", "drain", ADDRESS, "--timeout", "5m", "-o", "json")
    try:
        assert command.wait_line(flows=total) == {"address": NAME, "flows": total, "eta_s": None, "state": "draining"}
        close(talkers, "b1", leave=2)
        line = command.wait_line(flows=2, state="draining")
        assert line["eta_s"] is None or line["eta_s"] > 0
        close(talkers, "b1")
        closed = Stopwatch()
        assert command.wait_line(state="drained") == {"address": NAME, "flows": 0, "eta_s": 0.0, "state": "drained"}
        code, rest, err = command.end()
        assert closed.s < END_S
        assert (code, rest, err) == (0, "", "")
        counts = [each["flows"] for each in command.lines]
        assert counts == sorted(set(counts), reverse=True), "a line is a change"
    finally:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


def test_a_bar_on_a_terminal(served: Cluster, talkers: list[Talkers]) -> None:
    total = at(talkers, "b1")
    terminal, ours = pty.openpty()
    command = Command(served, "backend", "drain", ADDRESS, "--timeout", "5m", stderr=ours)
    os.close(ours)
    shown = b""

    def sees(text: str) -> bool:
        nonlocal shown
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                return text.encode() in shown
        return text.encode() in shown

    try:
        wait_for(lambda: sees(f"[{'.' * 24}] {total} of {total} flows are left"), "an empty bar", 60)
        close(talkers, "b1", leave=1)
        wait_for(lambda: sees(f"] 1 of {total} flow is left"), "a fuller bar", 60)
        close(talkers, "b1")
        code, out, _ = command.end()
        assert (code, out) == (0, f"{NAME} drained\n")
        wait_for(lambda: sees(f"[{'#' * 24}] 0 of {total} flows are left"), "a full bar", 10)
    finally:
        os.close(terminal)
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


def test_the_rest_is_reset(served: Cluster, talkers: list[Talkers]) -> None:
    """Only flows of the backends that are drained end; UDP moves to another backend."""
    datagrams = Datagrams(served)
    by_backend = Counter(name for each in talkers for name in each.first)
    done = served.agent.cli("backend", "drain", *B1, "--timeout", "2s", check=False)
    assert done.returncode == 6
    assert all(each.ask() == each.first for each in talkers), "exit 6 ends no flow"
    done = served.agent.cli("backend", "drain", *B1, "--timeout", "2s", "--then", "reset")
    assert f"{NAME} reset: {by_backend['b1']} flows were left\n" in done.stdout
    with served.load(web=True, dns=True) as load:
        ended = [each.first[0] for each in talkers if each.ask() != each.first]
        assert Counter(ended) == {"b1": by_backend["b1"]}
        answers = datagrams.ask()
    assert load.tally.failures == []
    assert "b1" not in load.tally.answered
    assert "b1" not in answers
    assert all(now == first for first, now in zip(datagrams.first, answers, strict=True) if first != "b1")
    wait_for(lambda: flows(served) == 0, "no flow of b1", 60)
    for sock in datagrams.sockets:
        sock.close()
    served.agent.cli("backend", "set-state", "active", *B1)
    assert "b1" in served.http(60, [VIP4])


def test_json_of_a_reset(served: Cluster, talkers: list[Talkers]) -> None:
    done = served.agent.cli("backend", "drain", ADDRESS, "--timeout", "3s", "--then", "reset", "-o", "json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1] == {"address": NAME, "flows": at(talkers, "b1"), "eta_s": 0.0, "state": "reset"}
    assert [line["state"] for line in lines[:-1]] == ["draining"] * (len(lines) - 1)
    wait_for(lambda: flows(served) == 0, "no flow of b1, although no client has sent anything", 20)
    drains = served.agent.api.status
    wait_for(lambda: {row["address"]: row["state"] for row in drains()["drains"]}.get(NAME) == "drained", "its end", 20)
    causes = [row["cause"] for row in served.agent.json("history", "-n", "2")]
    assert causes == [f"back after the end of its flows: {NAME}", f"flows end of {NAME}"]


def test_a_node(served: Cluster, talkers: list[Talkers]) -> None:
    done = served.agent.cli("node", "drain", "node-b2", "--timeout", "2s", "--then", "reset")
    names = {row["address"] for row in served.agent.api.backends() if row["node"] == "node-b2"}
    assert len(names) == 4
    assert {line.split()[0] for line in done.stdout.splitlines()} == names
    assert {line.split()[1] for line in done.stdout.splitlines()} <= {"drained", "reset:"}
    assert {each.first[0] for each in talkers if each.ask() != each.first} == {"b2"}
    assert "b2" not in served.http(60)
    done = served.agent.cli("node", "drain", "node-b1", "--timeout", "2s", check=False)
    assert done.returncode == 6
    done = served.agent.cli("node", "drain", "nowhere", check=False)
    assert (done.returncode, done.stdout) == (3, "")
    done = served.agent.cli("node", "drain", "demo-node", check=False)
    assert done.returncode == 4, "no backend would be left"
