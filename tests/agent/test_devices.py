"""The log of what is attached: what came, what went, and nothing when nothing changed."""

from __future__ import annotations

import json
import re

import pytest

from tests.agent.conftest import Box, web
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]
_LINE = re.compile(r"attachments changed attached=(\[.*?\]) detached=(\[.*?\]) total=(\d+)$", re.MULTILINE)


def changes(box: Box) -> list[tuple[list[str], list[str], int]]:
    """Every change of attachments in the agent's log: what came, what went, how many there are."""
    return [
        (json.loads(came), json.loads(went), int(total))
        for came, went, total in _LINE.findall(box.agent.log.read_text())
    ]


def test_only_what_came_or_went_is_logged(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    ((came, went, total),) = changes(box)
    assert {name.rsplit("-", 1)[0] for name in came} == {"eth0"}
    assert (went, total) == ([], len(came))

    box.node.ip("link add pod7 type veth peer name far7", "link set pod7 up")
    wait_for(lambda: len(changes(box)) == 2, "the line about pod7")
    assert changes(box)[-1] == (["pod7-tc_egress", "pod7-tc_ingress"], [], total + 2)

    box.node.ip(
        "link add other0 type veth peer name far0", "link set other0 up", "link set pod7 address 02:00:00:00:00:77"
    )
    box.node.ip("link del pod7")
    wait_for(lambda: len(changes(box)) == 3, "the line about pod7's end")
    assert changes(box)[-1] == ([], ["pod7-tc_egress", "pod7-tc_ingress"], total)
