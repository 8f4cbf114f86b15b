"""The frame of a demo: root, signals, errors, and the check that nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from show import Show

from lbagent.errors import LbError
from lbagent.kernel.mounts import first_cgroup
from tests.lab.netns import LabError, run


def present(target: str, play: Callable[[Show], None], *errors: type[Exception]) -> int:
    """Run a demo and return the exit code: 1 for a false claim or one of the errors, 130 after Ctrl-C."""
    show, start = Show(), time.monotonic()
    sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show the bars shows question marks
    if os.geteuid() != 0:
        print(
            f"the demo creates network namespaces and loads BPF programs, which needs root: sudo make {target}",
            file=sys.stderr,
        )
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        play(show)
    except KeyboardInterrupt:
        if left := remains():
            print(f"\nstopped, and left: {' '.join(left)}", file=sys.stderr)
            return 1
        print("\nstopped; everything is removed", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `make demo-cloud | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (LabError, LbError, OSError, *errors) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    left = remains()
    show.title("Clean-up")
    show.claim(not left, "no namespace, no pin, no cgroup, no process, no file is left", " ".join(left))
    show.say(f"{time.monotonic() - start:.0f} s in all")
    for text in show.untrue:
        print(f"not true: {text}", file=sys.stderr)
    return 1 if show.untrue else 0


def remains() -> list[str]:
    """Return what this process created and did not remove: namespaces, cgroups, folders, mounts, processes."""
    with contextlib.suppress(ChildProcessError):  # after Ctrl-C a child may not have been waited for
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    pid = os.getpid()
    spaces = [name for name in run("ip", "netns", "list").split() if name.startswith(f"lbx{pid}-")]
    cgroups = [str(path) for path in Path(first_cgroup()).glob(f"lbx{pid}-*")]
    marks = [f"/lbagent-{kind}-{pid}-" for kind in ("lab", "host")]  # in the path of each folder
    folders = [str(path) for path in Path(tempfile.gettempdir()).glob(f"lbagent-*-{pid}-*")]
    lines = Path("/proc/mounts").read_text().splitlines()
    mounts = [line.split()[1] for line in lines if any(mark in line for mark in marks)]
    return spaces + cgroups + folders + mounts + [f"process {each}" for each in _processes(marks)]


def _processes(marks: list[str]) -> list[str]:
    """Return children, and processes of other parents whose command line names a folder of the demo."""
    tasks = Path("/proc/self/task").iterdir()
    found = [word for task in tasks for word in (task / "children").read_text().split()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended in the meantime
            words = path.read_text(errors="replace")
            if any(mark in words for mark in marks):
                found.append(path.parent.name)
    return found
