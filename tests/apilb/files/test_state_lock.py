"""One change at a time on one state: the message names the holder of the lock, and a process that died has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.apilb.files.state_lock import state_locked
from lbagent.errors import LbError, Refused

HOLD = "import sys; from lbagent.apilb.files.state_lock import state_locked\n"
HOLD += "with state_locked(sys.argv[1]): print('locked', flush=True); sys.stdin.read()"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.yaml"


@pytest.fixture
def holding(state: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has the lock."""
    argv = [sys.executable, "-c", HOLD, str(state)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_another_process_that_has_it_is_named(state: Path, holding: subprocess.Popen[str]) -> None:
    lock = state.with_name("state.yaml.lock")
    with pytest.raises(Refused, match=f"^{lock} is locked by pid {holding.pid}, ") as caught, state_locked(str(state)):
        pass
    assert caught.value.exit_code == 4
    assert lock.stat().st_mode & 0o7777 == 0o600


def test_a_process_that_was_killed_has_none(state: Path, holding: subprocess.Popen[str]) -> None:
    holding.send_signal(signal.SIGKILL)
    holding.wait()
    lock = state.with_name("state.yaml.lock")
    assert lock.exists()
    with state_locked(str(state)):
        pass
    assert not lock.exists()


def test_one_after_the_other(state: Path) -> None:
    for _ in range(2):
        with state_locked(str(state)), pytest.raises(Refused), state_locked(str(state)):
            pass
    assert os.listdir(state.parent) == []


def test_a_state_that_is_a_link_has_the_lock_of_its_file(state: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(state)
    with state_locked(str(link)), pytest.raises(Refused, match=r"state\.yaml\.lock"), state_locked(str(state)):
        pass


def test_a_lock_file_that_was_removed_by_its_process_is_none(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, opened = state.with_name("state.yaml.lock"), os.open

    def open_then_removed(path: str, *args: int) -> int:
        monkeypatch.setattr(os, "open", opened)
        handle = opened(path, *args)
        lock.unlink()
        return handle

    monkeypatch.setattr(os, "open", open_then_removed)
    with state_locked(str(state)):
        assert lock.exists()  # so that the next process finds it


def test_without_a_folder_there_is_no_state_to_lock(tmp_path: Path) -> None:
    with state_locked(str(tmp_path / "missing" / "state.yaml")):
        pass


def test_a_folder_in_its_place_is_said(state: Path) -> None:
    state.with_name("state.yaml.lock").mkdir()
    with pytest.raises(LbError, match="lock: Is a directory; nothing was changed"), state_locked(str(state)):
        pass
