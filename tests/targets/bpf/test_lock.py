"""One agent on one directory, however the other one ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lbagent.errors import Conflict, KernelError
from lbagent.kernel.private_folder import holder
from lbagent.targets.bpf.lock import AgentLock

HOLD = "import sys, time; from pathlib import Path; from lbagent.targets.bpf.lock import AgentLock; \
AgentLock(Path(sys.argv[1])).take(); print('held', flush=True); time.sleep(60)"


def running_agent(directory: Path) -> int:
    """Return the pid of the agent that holds a pin directory, 0 when there is none."""
    if not directory.is_dir():
        return 0
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return holder(fd)
    finally:
        os.close(fd)


def holding(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        with pytest.raises(Conflict, match=rf"pid {process.pid}\b") as caught:
            AgentLock(tmp_path).take()
        assert caught.value.exit_code == 4
        assert running_agent(tmp_path) == process.pid
        process.kill()


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
    assert running_agent(tmp_path) == 0
    lock = AgentLock(tmp_path)
    lock.take()
    assert running_agent(tmp_path) == os.getpid()
    lock.release()
    assert running_agent(tmp_path) == 0
    lock.release()


def test_a_program_that_is_run_does_not_inherit_it(tmp_path: Path) -> None:
    lock = AgentLock(tmp_path)
    lock.take()
    with subprocess.Popen(["sleep", "30"]) as child:
        lock.release()
        assert running_agent(tmp_path) == 0
        child.kill()


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="none"):
        AgentLock(tmp_path / "none").take()
    assert running_agent(tmp_path / "none") == 0


def test_it_moves_to_another_folder_once_the_work_there_is_done(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    lock = AgentLock(old)
    lock.take()
    with pytest.raises(OSError, match="full"), lock.moving_to(new):
        assert running_agent(old) == running_agent(new) == os.getpid()
        raise OSError("full")
    assert (running_agent(old), running_agent(new)) == (os.getpid(), 0)
    with lock.moving_to(new):
        assert lock.opened.samefile(old)
    assert (running_agent(old), running_agent(new)) == (0, os.getpid())
    lock.release()
