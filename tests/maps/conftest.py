"""Small maps in memory and in the kernel, new ones for each test."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import tempfile

import pytest

from lbagent.kernel import bpf_map, bpfsys
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import HOST_ORDER, LB_CONFIG
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes, map_specs

SMALL = Sizes(
    flow4=1 << 10, flow6=1 << 10, snat4=1 << 10, snat6=1 << 10, services=1 << 8, backends=1 << 8,
    source_ranges=1 << 6, affinity=1 << 6, spill=1 << 6, fragments=1 << 6, maglev_size=251,
)  # fmt: skip


@contextlib.contextmanager
def private_bpffs():
    """Yield a directory that becomes a bpf file system of its own; it is removed afterwards with every map pinned in it."""
    path = tempfile.mkdtemp(prefix="lbmaps")
    try:
        yield path
    finally:
        libc = ctypes.CDLL(None, use_errno=True)
        while libc.umount2(os.fsencode(path), 2) == 0:  # MNT_DETACH
            pass
        os.rmdir(path)


def settings_of_layout(number: int) -> bytes:
    """Return a record of lb_config with this layout of the flow tables."""
    return bytes(LB_CONFIG.offsets()["flow_layout"]) + number.to_bytes(8, HOST_ORDER)


def pin_settings(bpffs: str, record: bytes) -> None:
    """Pin the settings of a generation of programs."""
    spec = dataclasses.replace(map_specs()["lb_config"], value_size=len(record))
    fd = pins.create_map(spec)
    bpf_map.map_update(fd, bytes(4), record)
    bpf_map.map_freeze(fd)
    bpfsys.obj_pin(fd, f"{bpffs}/v1/lb_config")
    os.close(fd)


@pytest.fixture
def bpffs():
    """A directory for pins."""
    with private_bpffs() as path:
        yield path


@pytest.fixture
def kernel_maps(bpffs):
    """Small maps in the kernel."""
    with KernelMaps.open(bpffs, SMALL) as maps:
        yield maps


@pytest.fixture(params=["memory", pytest.param("kernel", marks=[pytest.mark.root, pytest.mark.bpf])])
def maps(request):
    """Both kinds of maps: the same tests apply to both."""
    if request.param == "memory":
        yield MemoryMaps(SMALL)
    else:
        yield request.getfixturevalue("kernel_maps")
