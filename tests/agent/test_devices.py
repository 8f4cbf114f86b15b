"""The log of what is attached: what came, what went, and nothing when nothing changed."""

from __future__ import annotations

import json
import os
import re

import pytest

from lbagent.kernel.bpf_prog import prog_info
from lbagent.kernel.bpffs import open_pin
from lbagent.maps.pins import pin_dir
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


def loaded(box: Box) -> set[str]:
    """The programs of the generation in force that have a pin."""
    return {pin.name for pin in (pin_dir(box.bpffs) / "prog").iterdir()}


def program_ids(box: Box) -> dict[str, int]:
    """The ids of the pinned programs of tc and of those that the agent runs."""
    out = {}
    for name in ("tc_ingress", "tc_egress", "sweep4", "sweep6"):
        fd = open_pin(pin_dir(box.bpffs) / "prog" / name)
        out[name] = prog_info(fd).id
        os.close(fd)
    return out


def test_programs_of_xdp_are_loaded_for_a_device_that_has_it(box: Box) -> None:
    """`--attach auto` takes tc on a veth; the next agent uses XDP, and loads that beside what is there; the third one uses tc."""
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    assert {"tc_ingress", "tc_egress", "tc_after_xdp", "sweep4", "sweep6", "migrate4"} <= loaded(box)
    assert "xdp" not in loaded(box)
    first = program_ids(box)
    for attach, hooks in (("xdp", {"xdp", "tc_after_xdp", "tc_egress"}), ("tc", {"tc_ingress", "tc_egress"})):
        box.agent.stop()
        box.agent.attach = attach
        box.agent.start()
        assert "xdp" in loaded(box)
        assert program_ids(box) == first
        (device,) = (each for each in box.agent.json("status")["devices"] if each["name"] == "eth0")
        assert set(device["hooks"]) == hooks
