"""The agent runs a drain: it continues without the command that started it, and in the next agent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, Cluster
from tests.e2e.conftest import opened
from tests.lab.agent import program
from tests.lab.netns import wait_for

pytestmark = pytest.mark.early

ADDRESS, NAME = "10.77.1.2:8080", "10.77.1.2:8080/TCP"  # of b1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One attach mode is enough: programs have no state of drains. Flows of closed connections expire soon."""
    with opened("tc", ["--timeout-closing", "1"]) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


class Drain:
    """An open connection to each backend, and a drain of b1 by the command line that waits for those to b1."""

    def __init__(self, served: Cluster) -> None:
        self.served = served
        self.talkers = [served.talkers(1) for _ in range(80)]
        self.to_b1 = sum(talker.first == ["b1"] for talker in self.talkers)
        assert self.to_b1 > 2
        wait_for(lambda: self.flows() == self.to_b1, "the end of all other flows", 60)
        argv = [*program(), "backend", "drain", ADDRESS, "--timeout", "10m"]
        env = {**os.environ, "LBAGENT_SOCKET": str(served.lab.socket)}
        self.command = served.lab.node.popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end_flows(self, leave: int) -> None:
        """Close connections to b1 until so many are left."""
        here = [talker for talker in self.talkers if talker.first == ["b1"]]
        for talker in here[: max(0, len(here) - leave)]:
            talker.close()
            self.talkers.remove(talker)

    def flows(self) -> int:
        """Return the flows of b1 in `backend list`."""
        return next(int(row["flows"]) for row in self.served.agent.api.backends() if row["address"] == NAME)

    def of_status(self) -> dict[str, Any]:
        """Return the drain of b1 in `status`."""
        return {each["address"]: each for each in self.served.agent.api.status()["drains"]}.get(NAME, {})

    def wait(self, **fields: Any) -> None:
        """Wait until `status` shows a drain with these fields."""
        wait_for(lambda: fields.items() <= self.of_status().items(), f"a drain with {fields}", 60)

    def close(self) -> None:
        """End everything."""
        for talker in self.talkers:
            talker.close()
        if self.command.poll() is None:
            self.command.kill()
        self.command.communicate()
        self.served.agent.cli("backend", "set-state", "active", ADDRESS)


@pytest.fixture
def drain(served: Cluster) -> Any:
    """One drain that waits for flows, followed by its command."""
    found = Drain(served)
    try:
        found.wait(state="draining", flows=found.to_b1, flows_at_start=found.to_b1, counted=True)
        yield found
    finally:
        found.close()


def test_the_command_is_killed_half_way(drain: Drain) -> None:
    drain.end_flows(leave=2)
    drain.wait(state="draining", flows=2, flows_at_start=drain.to_b1)
    since = drain.of_status()["since"]
    drain.command.send_signal(signal.SIGKILL)
    drain.command.wait()
    assert f"drain      {NAME}: 2 of {drain.to_b1} flows left" in drain.served.agent.cli("status").stdout
    assert "b1" not in drain.served.http(60, [VIP4])
    drain.end_flows(leave=1)
    drain.wait(state="draining", flows=1, since=since)
    rows = {row["address"]: row for row in drain.served.agent.api.backends()}
    assert (rows[NAME]["state"], rows[NAME]["drain"]["flows"], rows[NAME]["drain"]["since"]) == (
        "maintenance",
        1,
        since,
    )
    drain.end_flows(leave=0)
    drain.wait(state="drained", flows=0, flows_at_start=drain.to_b1, since=since)
    assert f"drain      {NAME}: drained" in drain.served.agent.cli("status").stdout
    drain.served.agent.cli("backend", "clear-state", ADDRESS)
    assert drain.of_status() == {}


def test_the_agent_is_killed_half_way(drain: Drain) -> None:
    """The command follows the next agent, which continues the stored drain; connections continue."""
    drain.end_flows(leave=2)
    drain.wait(state="draining", flows=2, counted=True)
    before = drain.of_status()
    drain.served.agent.kill()
    assert "b1" not in drain.served.http(40, [VIP4])
    drain.served.agent.start()
    drain.wait(state="draining", flows=2, counted=True, since=before["since"], flows_at_start=drain.to_b1)
    assert 0 < drain.of_status()["remaining_s"] < before["remaining_s"]
    assert "b1" not in drain.served.http(40, [VIP4])
    assert all(talker.ask() == talker.first for talker in drain.talkers)
    assert drain.command.poll() is None
    drain.end_flows(leave=0)
    out, _ = drain.command.communicate(timeout=60)
    assert (drain.command.returncode, out) == (0, f"{NAME} drained\n")
    assert drain.of_status()["state"] == "drained"


def test_a_second_command_joins_and_set_state_cancels_both(drain: Drain) -> None:
    since = drain.of_status()["since"]
    second = drain.served.agent.cli("backend", "drain", ADDRESS, "--timeout", "2s", check=False)
    assert second.returncode == 6
    assert f"flows are left: {NAME} {drain.to_b1}" in second.stderr
    assert (drain.of_status()["state"], drain.of_status()["since"]) == ("draining", since)
    drain.served.agent.cli("backend", "set-state", "active", ADDRESS)
    _, err = drain.command.communicate(timeout=60)
    assert drain.command.returncode == 1
    assert "was cancelled by set-state or clear-state" in err
    assert "b1" in drain.served.http(60, [VIP4])
