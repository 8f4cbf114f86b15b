"""An agent behind the process that entered its node's namespaces: which one is killed, and the content of its log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from tests.conformance.node_agents import NodeAgent
from tests.conformance.node_cluster import NodeCluster
from tests.lab.netns import LabError, wait_for


class Nodes:
    """A fake cluster: a process on a node is a child of the one that entered it, as with a pid namespace."""

    def __init__(self, program: str) -> None:
        self.program = program

    def on_node(self, node: str, argv: Sequence[str]) -> list[str]:
        return ["sh", "-c", f"{self.program}; exit 3"]


def agent(folder: Path, program: str = "sleep 1000") -> NodeAgent:
    return NodeAgent(cast(NodeCluster, Nodes(program)), "node", [], folder / "node.log")


def test_a_kill_meets_the_agent_and_is_waited_for(tmp_path: Path) -> None:
    one = agent(tmp_path)
    one.start()
    wait_for(lambda: one.pid and Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n", "the agent")
    pid = one.pid
    one.kill()
    assert not Path(f"/proc/{pid}").exists()
    assert one.pid is None
    one.start()
    assert wait_for(lambda: one.pid, "the agent") != pid
    assert one.starts == 2
    one.kill()


def test_an_agent_that_ended_by_itself_is_named_with_its_log(tmp_path: Path) -> None:
    one = agent(tmp_path, "echo no such node")
    one.start()
    assert one.outer is not None
    one.outer.wait(10)
    with pytest.raises(LabError, match="node: the agent ended with 3\nno such node"):
        one.ready()


def test_warnings_and_errors_are_counted_by_what_they_are(tmp_path: Path) -> None:
    one = agent(tmp_path)
    began = {"level": "warning", "message": "a condition began", "condition": "map-nearly-full"}
    lines = [
        {"level": "info", "message": "ready"},
        began,
        began,
        {"level": "error", "message": "failed", "error": "why"},
    ]
    one.log.write_text("\n".join([*map(json.dumps, lines), "Traceback"]) + "\n")
    assert one.log_counts() == {
        "warning: a condition began: map-nearly-full": 2,
        "error: failed: why": 1,
        "Traceback": 1,
    }
