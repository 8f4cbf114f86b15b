"""bpf(2) for programs and links: load, test-run, link, pin, info. Maps are in kernel/bpfsys.py.

Attribute layouts: include/uapi/linux/bpf.h, `union bpf_attr`; each `struct` format below names its fields in order.
Every file descriptor returned is the caller's to close.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from lbagent.kernel import bpfsys
from lbagent.kernel.bpfsys import Cmd
from lbagent.kernel.kernel_error import kernel_error, kernel_errors

if TYPE_CHECKING:
    pass

LICENSE = b"Dual BSD/GPL\0"
BPF_F_XDP_HAS_FRAGS = 1 << 5
BPF_F_REPLACE = 1 << 2
LOG_TEXT, LOG_STATS = 1, 4
LOG_BYTES = 16 << 20  # a rejected program of 100,000 states fits


class ProgType(IntEnum):
    """Program types. Source: enum bpf_prog_type."""

    SCHED_CLS = 3
    XDP = 6


class AttachType(IntEnum):
    """Where a link attaches. Source: enum bpf_attach_type."""

    XDP = 37
    TCX_INGRESS = 46
    TCX_EGRESS = 47


def bpf(cmd: Cmd, attr: bytes | bytearray) -> int:
    """Make the system call; return its result, or the negative errno. A bytearray gets back what the kernel wrote."""
    buffer = ctypes.create_string_buffer(bytes(attr), len(attr))
    result = bpfsys.call(cmd, buffer, len(attr))
    if isinstance(attr, bytearray):
        attr[:] = buffer.raw
    return result


def address_of(buffer: ctypes.Array[ctypes.c_char]) -> int:
    """Return the address of a ctypes buffer; the caller keeps the buffer alive."""
    return ctypes.addressof(buffer)


def _checked(result: int, op: str, subject: str, advice: str = "") -> int:
    if result < 0:
        raise kernel_error(op, -result, subject, advice)
    return result


@dataclass(frozen=True)
class LoadResult:
    """Outcome of one BPF_PROG_LOAD: `fd` >= 0, or `errno` and the verifier's log."""

    fd: int
    errno: int
    log: str


def prog_load(
    prog_type: ProgType,
    insns: bytes,
    name: str,
    *,
    flags: int = 0,
    expected_attach_type: int = 0,
    log_level: int = 0,
    log_bytes: int = LOG_BYTES,
) -> LoadResult:
    """Load one program; never raises for a rejection, so that the caller can ask again with a log."""
    code = ctypes.create_string_buffer(insns, len(insns))
    license_text = ctypes.create_string_buffer(LICENSE)
    log = ctypes.create_string_buffer(log_bytes if log_level else 1)
    attr = struct.pack(
        # type, insn_cnt, insns, license, log_level, log_size, log_buf, kern_version, flags, name, ifindex, expected_attach
        "<IIQQIIQII16sII",
        prog_type, len(insns) // 8, address_of(code), address_of(license_text),
        log_level, log_bytes if log_level else 0, address_of(log) if log_level else 0,
        0, flags, name.encode()[:15], 0, expected_attach_type,
    )  # fmt: skip
    result = bpf(Cmd.PROG_LOAD, attr)
    text = log.value.decode(errors="replace")
    return LoadResult(result, 0, text) if result >= 0 else LoadResult(-1, -result, text)


@dataclass(frozen=True)
class RunOutput:
    """What BPF_PROG_TEST_RUN gives back; `duration_ns` is the kernel's mean of the repeats."""

    retval: int
    data: bytes
    ctx: bytes
    duration_ns: int


def prog_test_run(
    fd: int, data: bytes, *, ctx: bytes = b"", repeat: int = 1, flags: int = 0, room: int = 512
) -> RunOutput:
    """Run a program on `data`; `room` bytes more than it may come back. Interface indexes are the calling thread's netns."""
    data_in = ctypes.create_string_buffer(data, max(len(data), 1))
    out_size = 0 if flags else len(data) + room  # live frames give nothing back
    data_out = ctypes.create_string_buffer(max(out_size, 1))
    ctx_in = ctypes.create_string_buffer(ctx, max(len(ctx), 1))
    ctx_out = ctypes.create_string_buffer(max(len(ctx), 1))
    ctx_ok = bool(ctx) and not flags
    attr = bytearray(
        struct.pack(
            # prog_fd, retval, size_in, size_out, data_in, data_out, repeat, duration, ctx_size_in, ctx_size_out,
            # ctx_in, ctx_out, flags, cpu, batch_size, pad
            "<IIIIQQIIIIQQIIII",
            fd, 0, len(data), out_size, address_of(data_in), address_of(data_out) if out_size else 0, repeat, 0,
            len(ctx), len(ctx) if ctx_ok else 0, address_of(ctx_in) if ctx else 0, address_of(ctx_out) if ctx_ok else 0,
            flags, 0, 0, 0,
        )
    )  # fmt: skip
    _checked(bpf(Cmd.PROG_TEST_RUN, attr), "test run", "a BPF program")
    retval, _, size_out = struct.unpack_from("<III", attr, 4)
    duration, _, ctx_size = struct.unpack_from("<III", attr, 36)
    return RunOutput(retval, data_out.raw[:size_out], ctx_out.raw[:ctx_size] if ctx_ok else b"", duration)


# --- pins, links ---


def obj_pin(fd: int, path: str) -> None:
    """Pin a program or link. Raises KernelError (EEXIST when the path is taken)."""
    with kernel_errors("pin", path):
        bpfsys.obj_pin(fd, path)


def obj_get(path: str) -> int:
    """Return a descriptor for what is pinned at path. Raises KernelError."""
    with kernel_errors("open pin", path):
        return bpfsys.obj_get(path)


def link_create(prog_fd: int, target: int, attach: AttachType, flags: int = 0) -> int:
    """Attach a program to the interface index `target` (of the calling thread's netns); return the link."""
    attr = struct.pack("<IIIIQQQ", prog_fd, target, attach, flags, 0, 0, 0)
    return _checked(bpf(Cmd.LINK_CREATE, attr), "attach", f"interface {target}")


def link_update(link_fd: int, prog_fd: int, old_fd: int | None = None) -> None:
    """Put another program into a link, atomically: each packet sees the old one or the new one."""
    flags = BPF_F_REPLACE if old_fd is not None else 0
    attr = struct.pack("<IIII", link_fd, prog_fd, flags, old_fd or 0)
    _checked(bpf(Cmd.LINK_UPDATE, attr), "replace the program", "a link")


def link_detach(link_fd: int) -> None:
    """Detach a link at once, whoever else holds it."""
    _checked(bpf(Cmd.LINK_DETACH, struct.pack("<I", link_fd)), "detach", "a link")


# --- information ---


def _info(fd: int, size: int, what: str) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    attr = struct.pack("<IIQ", fd, size, address_of(buffer))
    _checked(bpf(Cmd.OBJ_GET_INFO_BY_FD, attr), "read information", what)
    return buffer.raw


@dataclass(frozen=True)
class ProgInfo:
    """struct bpf_prog_info, the part we use. `run_*` count only while statistics are on (`enable_stats`)."""

    type: int
    id: int
    tag: str
    name: str
    jited_bytes: int
    xlated_bytes: int
    run_time_ns: int
    run_cnt: int
    verified_insns: int


def prog_info(fd: int) -> ProgInfo:
    """Describe a loaded program."""
    raw = _info(fd, 232, "a program")
    kind, ident, tag, jited, xlated = struct.unpack_from("<II8sII", raw)
    run_ns, run_cnt = struct.unpack_from("<QQ", raw, 192)
    (verified,) = struct.unpack_from("<I", raw, 216)
    name = raw[64:80].split(b"\0")[0].decode()
    return ProgInfo(kind, ident, tag.hex(), name, jited, xlated, run_ns, run_cnt, verified)


@dataclass(frozen=True)
class LinkInfo:
    """struct bpf_link_info: `ifindex` is 0 once the device is gone."""

    type: int
    id: int
    prog_id: int
    ifindex: int


def link_info(fd: int) -> LinkInfo:
    """Describe a link."""
    raw = _info(fd, 64, "a link")
    kind, ident, prog_id = struct.unpack_from("<III", raw)
    (ifindex,) = struct.unpack_from("<I", raw, 16)
    return LinkInfo(kind, ident, prog_id, ifindex)


def prog_by_id(ident: int) -> int:
    """Return a descriptor for a program id."""
    with kernel_errors("open", f"program {ident}"):
        return bpfsys.prog_fd_by_id(ident)


def enable_stats() -> int:
    """Count run time and runs of every program until the returned descriptor is closed."""
    return _checked(bpf(Cmd.ENABLE_STATS, struct.pack("<I", 0)), "enable statistics", "BPF")
