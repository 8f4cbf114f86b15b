"""A start that fails: one sentence, the exit code, and the kernel as it was."""

from __future__ import annotations

import pytest

from tests.agent.conftest import Box, web
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]

WRONG = {
    "device": ((), 3, "nope0"),
    "artifact missing": (("--artifact", "/none/here.json"), 2, "--artifact /none/here.json: no such file"),
    "no artifact": (("--artifact", "/etc/hostname"), 1, "/etc/hostname is not an lbagent artifact"),
    "foreign metrics address": (("--metrics-address", "192.0.2.77:9100"), 2, "192.0.2.77:9100"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_first_start_that_fails_leaves_nothing(box: Box, what: str) -> None:
    arguments, code, words = WRONG[what]
    box.write("web.json", *web("10.7.0.5"))
    done = box.failed_start(*arguments, device="nope0" if what == "device" else "eth0")
    assert done.returncode == code
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert not box.bpffs.exists()
    assert not box.socket.exists()


def test_a_later_start_that_fails_leaves_what_serves(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    before = box.agent.dump()
    box.agent.stop()
    pins = sorted(box.bpffs.rglob("*"))
    assert box.failed_start(device="nope0").returncode == 3
    assert sorted(box.bpffs.rglob("*")) == pins
    assert box.agent.dump() == before


def test_a_start_that_must_hold_back_does_not_call_itself_ready(box: Box) -> None:
    """The folder is empty after a restart: nothing is taken away, `status` and the log say what is waited for."""
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    before = box.agent.dump()
    box.agent.stop()
    box.agent.log.unlink()
    (box.manifests / "web.json").rename(box.folder / "away.json")
    box.agent.start(wait=False)
    wait_for(lambda: "started, not ready" in box.agent.tail(), "the agent's start")
    assert box.agent.cli("status", "--wait", "100ms", check=False).returncode == 6
    assert box.agent.dump() == before
    (box.folder / "away.json").rename(box.manifests / "web.json")
    box.agent.wait_ready()
    assert box.agent.dump() == before


def test_a_bpf_file_system_takes_no_dots(box: Box) -> None:
    done = box.failed_start("--bpffs", f"{box.bpffs}.two")
    assert done.returncode == 2
    assert "dots" in done.stderr
