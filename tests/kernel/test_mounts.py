"""Which cgroup is the machine's, from within a container and without."""

from __future__ import annotations

import os

import pytest

from lbagent.kernel.mounts import first_cgroup, open_cgroup, widest_cgroup


def mount(root: str, place: str, kind: str = "cgroup2") -> str:
    return f"30 23 0:26 {root} {place} rw,nosuid,relatime shared:4 - {kind} cgroup rw"


OTHER = mount("/", "/sys", "sysfs")


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ([OTHER], ""),
        ([OTHER, mount("/", "/sys/fs/cgroup"), mount("/", "/mnt/again")], "/sys/fs/cgroup"),
        ([mount("/", "/sys/fs/cgroup"), mount("/../../..", "/host/cgroup")], "/host/cgroup"),
        ([mount("/", "/own"), mount("/../..", "/pod"), mount("/../../..", "/all"), mount("/../../../x", "/x")], "/all"),
        ([mount("/kubepods/pod1/c", "/sys/fs/cgroup"), mount("/", "/host/cgroup")], "/host/cgroup"),
        ([mount("/", "/a\\040b")], "/a b"),
    ],
)
def test_the_widest_mount_of_cgroup2_is_the_machines(mounts: list[str], expected: str) -> None:
    """A container's own cgroup comes first among its mounts, and is / in a cgroup namespace of its own."""
    assert widest_cgroup(mounts) == expected


def test_this_machines_is_a_cgroup() -> None:
    if path := first_cgroup():
        os.close(open_cgroup(path))
