"""Processes of Python programs that begin at once: forked from a process that has imported their modules.

A command of lbagent takes 0.1 s of a processor to be imported, an agent 0.3 s, and tests start thousands of them. Each is a process of
its own all the same, with its own arguments, environment, network namespace and streams; its command line (/proc) is the same for all.
"""

from __future__ import annotations

import array
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND, SERVER = "lbagent", "tests.lab.server"  # the prepared programs
STATUS_BYTES = 4
PID_BYTES = 8
HOME = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)  # the network namespace of this process


def program_of(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return the prepared program of a command line, "" if it is none, or if the environment has settings of the interpreter."""
    if any(name.startswith("PYTHON") for name in env or {}):
        return ""
    if Path(argv[0]) == Path(sys.executable).with_name(COMMAND):
        return COMMAND
    return SERVER if list(argv[:3]) == [sys.executable, "-m", SERVER] else ""


class Forker:
    """The process that forks (forker.py), one for each process that runs tests; it ends with that one."""

    def __init__(self) -> None:
        """Start it."""
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fds = [theirs.fileno(), HOME]
            argv = [sys.executable, "-m", "tests.lab.forker", *map(str, fds)]
            self._process = subprocess.Popen(argv, cwd=ROOT, pass_fds=fds, process_group=0)

    def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Start a process with these descriptors (stdin, stdout, stderr, one for its wait status); return its id."""
        with self._lock:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            self._socket.sendmsg([json.dumps(request).encode()], ancillary)
            answer = self._socket.recv(PID_BYTES)
        if len(answer) != PID_BYTES:
            raise OSError("the process that forks has ended")
        return int.from_bytes(answer, "little")


@functools.cache
def _forker(_pid: int) -> Forker:
    return Forker()


class PreparedPopen(subprocess.Popen[str]):
    """As Popen, of a prepared program with its command line, in a network namespace ("": this process's)."""

    def __init__(self, program: str, argv: Sequence[str], netns: Path | str, **kwargs: Any) -> None:
        """Start it, in its own process group. Takes stdin, stdout, stderr, env and cwd of Popen; its streams are text."""
        self._request = {"program": program, "netns": str(netns)}
        super().__init__(argv, text=True, **kwargs)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        """Let it be forked. The order of arguments: subprocess.Popen._execute_child."""
        _executable, _preexec, _close_fds, _pass_fds, cwd, env, _info, _flags, _shell, *pipes = rest[:15]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = pipes
        status, theirs = os.pipe2(os.O_CLOEXEC)
        streams = [fd if fd >= 0 else number for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            **self._request,
            "argv": list(args),
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
        }
        try:
            self.pid = _forker(os.getpid()).fork(request, [*streams, theirs])
            self._child_created = True
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(theirs)
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._status = status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None and self._has_ended(0.0):
                    self._handle_exitstatus(self._wait_status())
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        ended = self._has_ended(0.0 if wait_flags & os.WNOHANG else None)
        return (self.pid, self._wait_status()) if ended else (0, 0)

    def _has_ended(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._status], [], [], timeout_s)[0])

    def _wait_status(self) -> int:
        data = os.read(self._status, STATUS_BYTES)
        os.close(self._status)
        return int.from_bytes(data, "little") if data else signal.SIGKILL  # with the process that forked it
