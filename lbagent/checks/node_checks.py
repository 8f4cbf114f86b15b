"""The other nodes of the cluster: which are dead, and whether this node can find out."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.checks.running_agent import RunningAgent
from lbagent.model.check import Check, Result, Severity


def node_dead(agent: RunningAgent) -> Iterator[Result]:
    """Report each dead node."""
    for node in sorted(agent.liveness.dead) if agent.liveness else ():
        yield Result(node, {"node": node})


def node_panic(agent: RunningAgent) -> Iterator[Result]:
    """Report that too many nodes do not answer."""
    if agent.liveness and (text := agent.liveness.panic_text()):
        yield Result("nodes", {"text": text})


def liveness_failed(agent: RunningAgent) -> Iterator[Result]:
    """Report what prevents that dead nodes are found."""
    for part, problem in agent.liveness.faults() if agent.liveness else ():
        yield Result(part, {"problem": problem})


CHECKS = (
    Check(
        "node-dead",
        "whether every node of the cluster answers its observers",
        node_dead,
        "node {node} is dead: its endpoints take no new flows while their Services have others",
        "see the node; its endpoints return when it has answered for 2 s",
        severity=Severity.DEGRADED,
    ),
    Check(
        "node-panic",
        "whether so many nodes do not answer that none is declared dead",
        node_panic,
        "{text}",
        "see the network between the nodes: all endpoints take new flows as the API has them",
    ),
    Check(
        "liveness-failed",
        "whether this node can find out which nodes are dead",
        liveness_failed,
        "{problem}",
        "until then this node publishes nothing about others, and takes over what they publish",
    ),
)
