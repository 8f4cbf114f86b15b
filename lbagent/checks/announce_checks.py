"""Whether this node announces its addresses, and whether another host has one of them."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.checks.running_agent import RunningAgent
from lbagent.model.address import format_ip
from lbagent.model.check import Check, Result


def address_conflict(agent: RunningAgent) -> Iterator[Result]:
    """Report each address that another host has or claims; it ends a minute after that host's last frame."""
    announcer = agent.announcer
    for conflict in announcer.conflicts() if announcer else ():
        yield Result(format_ip(conflict.address), {"conflict": conflict.text()})


def announcing_failed(agent: RunningAgent) -> Iterator[Result]:
    """Report what prevents announcements of addresses."""
    announcer = agent.announcer
    for subject, problem in announcer.faults() if announcer else ():
        yield Result(subject, {"problem": problem})


CONFLICT_CHECKS = (
    Check(
        "address-conflict",
        "whether another host has, or claims, an address that this node announces",
        address_conflict,
        "{conflict}",
        "find the host by its MAC address (the switch has its port) and remove the address from it",
    ),
)
ANNOUNCE_CHECKS = (
    Check(
        "announcing-failed",
        "whether this node can announce its addresses",
        announcing_failed,
        "{problem}",
        "`lbagent vip list` shows what is announced",
    ),
)
