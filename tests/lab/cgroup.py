"""A cgroup of the tests' own, so that socket programs see no process of this machine but those that the tests put there."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from lbagent.kernel.mounts import first_cgroup
from tests.lab.netns import PREFIX, owner_is_dead

_number = itertools.count()


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """Make a cgroup below the first mount of cgroup2; it is empty at the end and goes."""
    path = Path(first_cgroup(), f"{PREFIX}{os.getpid()}-{next(_number)}")
    path.mkdir()
    try:
        yield path
    finally:
        path.rmdir()


def sweep() -> None:
    """Remove those whose owner is dead: it was killed before it could."""
    for path in Path(first_cgroup()).glob(f"{PREFIX}*-*"):
        if owner_is_dead(path.name[len(PREFIX) :]):
            with contextlib.suppress(OSError):  # a process of it ends only now
                path.rmdir()


@contextlib.contextmanager
def joined(path: Path) -> Iterator[None]:
    """Let this process live there for a while: sockets that it opens meanwhile are of that cgroup, and stay so."""
    line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    home = Path(first_cgroup() + line.removeprefix("0::"))
    (path / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
