"""What an operator and a supervisor do to an agent at awkward moments: signals, watchdog, folders that cannot be written."""

from __future__ import annotations

import signal
import socket
import time

import pytest

from tests.agent.conftest import Box, web
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]


def hangup(box: Box) -> None:
    assert box.agent.process is not None
    box.agent.process.send_signal(signal.SIGHUP)


def test_a_hangup_during_the_start_is_taken_when_it_is_over(box: Box) -> None:
    config = box.folder / "c.yaml"
    config.write_text("reject-rate: 5\n")
    box.write("web.json", *web("10.7.0.5"))
    box.agent = box.make_agent("--config", str(config))
    box.agent.start(wait=False)
    wait_for(lambda: "agent starts" in box.agent.log.read_text(), "the start")
    config.write_text("reject-rate: 6\n")
    hangup(box)
    box.agent.wait_ready()
    wait_for(lambda: 'configuration applied keys=["reject-rate"]' in box.agent.log.read_text(), "the reload")


def test_a_device_that_has_gone_does_not_hold_a_reload_up(box: Box) -> None:
    """Only a device that is new to the agent must be there."""
    config = box.folder / "c.yaml"
    config.write_text("log-level: info\n")
    box.write("web.json", *web("10.7.0.5"))
    box.agent = box.make_agent("--config", str(config))
    box.agent.start()
    box.node.ip("link del eth0")
    wait_for(lambda: box.agent.json("status")["devices"][0]["problem"], "the device to go")
    config.write_text("log-level: debug\n")
    hangup(box)
    wait_for(lambda: 'configuration applied keys=["log-level"]' in box.agent.log.read_text(), "the reload")


def test_signs_of_life_for_the_watchdog(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    path = box.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(30)
        box.agent.start(env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"})
        said = [sock.recv(100) for _ in range(4)]
        assert said[0] == b"READY=1"
        assert said[1:] == [b"WATCHDOG=1"] * 3
        box.agent.process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)  # what was on its way has come
        sock.setblocking(False)
        while True:
            try:
                sock.recv(100)
            except BlockingIOError:
                break
        time.sleep(0.5)
        with pytest.raises(BlockingIOError):
            sock.recv(100)
        box.agent.process.send_signal(signal.SIGCONT)


def test_a_state_folder_that_cannot_be_written(box: Box) -> None:
    """The agent serves; `status` names what will not work, and set-state changes nothing."""
    box.write("web.json", *web("10.7.0.5"))
    (box.folder / "file").write_text("mine")
    box.agent = box.make_agent("--state-dir", str(box.folder / "file"))
    box.agent.start()
    problems = box.agent.json("status")["problems"]
    assert len(problems) == 1
    assert "--state-dir" in problems[0]
    assert "set-state is refused" in problems[0]
    done = box.agent.cli("backend", "set-state", "maintenance", "10.7.0.5:8080", check=False)
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert box.agent.json("backend", "list")[0]["state"] == "active"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_socket_that_cannot_be_is_refused_before_anything_is_made(box: Box, form: str) -> None:
    box.write("web.json", *web("10.7.0.5"))
    done = box.failed_start("--socket", str(box.folder), "--log-format", form)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1  # the agent never reported that it starts
    assert "a folder that is not a socket is there" in done.stderr
    assert done.stderr.startswith("{" if form == "json" else "error: ")
    assert not box.bpffs.exists()
