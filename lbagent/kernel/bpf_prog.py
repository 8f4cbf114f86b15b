"""BPF programs: load, test-run, describe. Raises OSError (kernel/bpfsys.py), except for a program that the kernel rejects."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from enum import IntEnum

from msgspec import Struct

from lbagent.kernel.bpfsys import BPF_OBJ_NAME_LEN, Cmd, bpf, call, fd_by_id, obj_info, pointer

LICENSE = b"Dual BSD/GPL\0"
LOG_TEXT, LOG_STATS = 1, 4
LOG_BYTES = 16 << 20  # fits a rejected program of 100,000 states
_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_MEMBARRIER_GLOBAL = 1
_GRACE_S = 0.05  # where the kernel has no barrier: no program runs that long


class ProgType(IntEnum):
    """Program types. Source: enum bpf_prog_type."""

    SCHED_CLS = 3
    XDP = 6
    RAW_TRACEPOINT = 17
    CGROUP_SOCK_ADDR = 18


class LoadResult(Struct, frozen=True):
    """Outcome of one BPF_PROG_LOAD: `fd` >= 0, or `errno` and the verifier's log."""

    fd: int
    errno: int
    log: str


def prog_load(
    prog_type: ProgType,
    insns: bytes,
    name: str,
    *,
    expected_attach_type: int = 0,
    log_level: int = 0,
    log_bytes: int = LOG_BYTES,
) -> LoadResult:
    """Load one program; never raises for a rejection, so that the caller can load it again with a log."""
    code = ctypes.create_string_buffer(insns, len(insns))
    license_text = ctypes.create_string_buffer(LICENSE)
    log = ctypes.create_string_buffer(log_bytes if log_level else 1)
    attr = struct.pack(
        # type, insn_cnt, insns, license, log_level, log_size, log_buf, kern_version, flags, name, ifindex, expected_attach
        "<IIQQIIQII16sII",
        prog_type, len(insns) // 8, ctypes.addressof(code), ctypes.addressof(license_text),
        log_level, log_bytes if log_level else 0, ctypes.addressof(log) if log_level else 0,
        0, 0, name.encode()[: BPF_OBJ_NAME_LEN - 1], 0, expected_attach_type,
    )  # fmt: skip
    result = call(Cmd.PROG_LOAD, ctypes.create_string_buffer(attr, len(attr)), len(attr))
    text = log.value.decode(errors="replace")
    return LoadResult(result, 0, text) if result >= 0 else LoadResult(-1, -result, text)


class RunOutput(Struct, frozen=True):
    """Result of BPF_PROG_TEST_RUN; `duration_ns` is the kernel's mean of the repeats."""

    retval: int
    data: bytes
    ctx: bytes
    duration_ns: int


def prog_test_run(
    fd: int, data: bytes, *, ctx: bytes = b"", repeat: int = 1, flags: int = 0, room: int = 512
) -> RunOutput:
    """Run a program on `data`; the output may have `room` bytes more. Interface indexes are the calling thread's netns'."""
    data_in = ctypes.create_string_buffer(data, max(len(data), 1))
    out_size = 0 if flags else len(data) + room  # live frames return nothing
    data_out = ctypes.create_string_buffer(max(out_size, 1))
    ctx_in = ctypes.create_string_buffer(ctx, max(len(ctx), 1))
    ctx_out = ctypes.create_string_buffer(max(len(ctx), 1))
    ctx_ok = bool(ctx) and not flags
    attr = bytearray(
        struct.pack(
            # prog_fd, retval, size_in, size_out, data_in, data_out, repeat, duration, ctx_size_in, ctx_size_out,
            # ctx_in, ctx_out, flags, cpu, batch_size, pad
            "<IIIIQQIIIIQQIIII",
            fd, 0, len(data), out_size, ctypes.addressof(data_in), ctypes.addressof(data_out) if out_size else 0, repeat, 0,
            len(ctx), len(ctx) if ctx_ok else 0, ctypes.addressof(ctx_in) if ctx else 0, ctypes.addressof(ctx_out) if ctx_ok else 0,
            flags, 0, 0, 0,
        )
    )  # fmt: skip
    bpf(Cmd.PROG_TEST_RUN, attr)
    retval, _, size_out = struct.unpack_from("<III", attr, 4)
    duration, _, ctx_size = struct.unpack_from("<III", attr, 36)
    return RunOutput(retval, data_out.raw[:size_out], ctx_out.raw[:ctx_size] if ctx_ok else b"", duration)


class ProgInfo(Struct, frozen=True):
    """struct bpf_prog_info, the part that is used."""

    id: int
    name: str
    jited_bytes: int


def prog_info(fd: int) -> ProgInfo:
    """Describe a loaded program."""
    raw = obj_info(fd, 80)
    _, ident, _, jited = struct.unpack_from("<II8sI", raw)
    return ProgInfo(ident, raw[64:80].split(b"\0")[0].decode(), jited)


def raw_tracepoint_open(fd: int, name: str) -> int:
    """Run a program at a tracepoint of the kernel while the returned descriptor is open. Raises OSError."""
    raw = name.encode() + b"\0"
    return bpf(Cmd.RAW_TRACEPOINT_OPEN, struct.pack("<QII", pointer(raw), fd, 0), name)  # name, prog_fd, pad


def prog_map_ids(fd: int) -> tuple[int, ...]:
    """Return the ids of the maps a program uses. Raises OSError."""
    count = struct.unpack_from("<I", obj_info(fd, 64), 52)[0]
    ids = ctypes.create_string_buffer(4 * max(1, count))
    info = ctypes.create_string_buffer(64)
    struct.pack_into("<IQ", info, 52, count, ctypes.addressof(ids))  # nr_map_ids, map_ids: the kernel's output buffer
    bpf(Cmd.OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, 64, ctypes.addressof(info)))  # bpf_fd, info_len, info
    return struct.unpack_from(f"<{count}I", ids)


def prog_fd_by_id(ident: int) -> int:
    """Return a descriptor for a program id. Raises OSError ENOENT when the program is gone."""
    return fd_by_id(Cmd.PROG_GET_FD_BY_ID, ident)


def grace_period() -> None:
    """Wait until no CPU runs a BPF program that it entered before this call (membarrier is synchronize_rcu)."""
    number = _SYS_MEMBARRIER.get(os.uname().machine)
    libc = ctypes.CDLL(None, use_errno=True)
    if number is None or libc.syscall(number, _MEMBARRIER_GLOBAL, 0, 0) != 0:
        time.sleep(_GRACE_S)
