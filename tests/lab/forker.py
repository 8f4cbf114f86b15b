"""Forks processes of Python programs whose modules it has imported: see prepared.py. `python -m tests.lab.forker FD HOME`.

A request is one message at that socket: JSON, with the descriptors of stdin, stdout, stderr and of a pipe for the wait status. The
answer is the process id. It has one thread, so a fork copies no lock that another thread holds.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
from typing import Any

import lbagent
from tests.lab.netns import LabError, setns
from tests.lab.prepared import COMMAND, SERVER

REQUEST_BYTES = 1 << 20
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
DEATH = 9
LEFT_OUT = ("lbagent.testing",)  # pytest


def prepare() -> None:
    """Import what a command or an agent imports."""
    importlib.import_module(SERVER)
    importlib.import_module("lbagent.cli.main")
    for found in pkgutil.walk_packages(lbagent.__path__, "lbagent."):
        if not found.name.startswith(LEFT_OUT) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    gc.collect()
    gc.freeze()


def run(program: str) -> None:
    """Run a program as its own process would."""
    if program == COMMAND:
        importlib.import_module("lbagent.cli.main").main()
    else:
        importlib.import_module(SERVER).run()


def become(request: dict[str, Any], streams: list[int]) -> None:
    """In the forked process: take the place that the request describes, run, and end."""
    code: Any = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, DEATH)
        ctypes.CDLL(None).prctl(PR_SET_NAME, os.path.basename(request["argv"][0]).encode())
        os.setpgid(0, 0)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(3, max(streams) + 64)
        if request["netns"]:
            setns(request["netns"])
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["argv"][2 if request["program"] == SERVER else 0 :]
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        gc.enable()
        run(request["program"])
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main(fd: int, home: int) -> None:
    """Fork until the socket is closed, as it is at the end of the other process. (PR_SET_PDEATHSIG is of a thread, which may end.)

    `home`: a network namespace that no test deletes. The first request may come from within one that is deleted with all in it.
    """
    with contextlib.suppress(LabError):  # not root: it is there already
        setns(f"/proc/self/fd/{home}")
    os.close(home)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    prepare()
    control = socket.socket(fileno=fd)
    waited: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            reap(waited)
        if control in ready:
            data, ancillary, _, _ = control.recvmsg(REQUEST_BYTES, socket.CMSG_LEN(4 * array.array("i").itemsize))
            if not data:
                return
            fds = array.array("i")
            for _, _, words in ancillary:
                fds.frombytes(words)
            *streams, status = fds
            pid = os.fork()
            if not pid:
                become(json.loads(data), streams)
            for each in streams:
                os.close(each)
            waited[pid] = status
            control.send(pid.to_bytes(8, "little"))


def reap(waited: dict[int, int]) -> None:
    """Pass on the wait status of each process that has ended."""
    while waited:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if (fd := waited.pop(pid, None)) is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(fd, status.to_bytes(4, "little"))
            os.close(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
