"""The tests' own cgroup, so that socket programs run only for processes that the tests move into it."""

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
    """Create a cgroup below the first mount of cgroup2; it is empty at the end and removed."""
    path = Path(first_cgroup(), f"{PREFIX}{os.getpid()}-{next(_number)}")
    path.mkdir()
    try:
        yield path
    finally:
        path.rmdir()


def sweep() -> None:
    """Remove those of killed owners."""
    for path in Path(first_cgroup()).glob(f"{PREFIX}*-*"):
        if owner_is_dead(path.name[len(PREFIX) :]):
            with contextlib.suppress(OSError):  # one of its processes is still ending
                path.rmdir()


@contextlib.contextmanager
def joined(path: Path) -> Iterator[None]:
    """Move this process there for the block: sockets that it opens belong to that cgroup permanently."""
    line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    home = Path(first_cgroup() + line.removeprefix("0::"))
    (path / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
