"""Counts frames that XDP programs sent and a device did not take: the kernel drops them without an error to the program.

Small programs on the kernel's tracepoints count them by device, for the network namespace of the agent. They need the kernel's
BTF and are loaded as long as the agent runs. Source: linux/include/trace/events/xdp.h (`xdp_redirect_err`, `xdp_devmap_xmit`,
`xdp_bulk_tx`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from lbagent.bpf.run import btf
from lbagent.kernel import bpf_map, bpf_prog
from lbagent.kernel.bpf_prog import ProgType
from lbagent.kernel.opcodes import (
    ADD64_IMM,
    ATOMIC_ADD,
    ATOMIC_U64,
    CALL,
    EXIT,
    JEQ_IMM,
    JNE_REG,
    LD_IMM64,
    LDX_U32,
    LDX_U64,
    MOV64_IMM,
    MOV64_REG,
    PSEUDO_MAP_FD,
    ST_U64,
    STX_U32,
    STX_U64,
    decode,
    insn,
    signed,
)
from lbagent.maps.specs import MapType

log = logging.getLogger(__name__)
DEVICES = 1024  # that have lost a frame
_KEY, _VALUE = struct.Struct("<I"), struct.Struct("<Qi4x")
_MAP_LOOKUP, _MAP_UPDATE, _PROBE_READ_KERNEL = 1, 2, 113
_OWN_NAMESPACE = Path("/proc/thread-self/ns/net")
# net_device.nd_net is a struct net *, whose ns.inum is the number of /proc/PID/ns/net
_MEMBERS = (("net_device", "ifindex"), ("net_device", "nd_net"), ("net", "ns"), ("ns_common", "inum"))


class SendErrors(NamedTuple):
    """Frames that one device did not take since the agent started, and the kernel's last error."""

    frames: int
    errno: int

    @property
    def text(self) -> str:
        """Return the reason as text; '' if the kernel gave none (a full queue)."""
        return os.strerror(self.errno) if self.errno else ""


class _Tracepoint(Struct, frozen=True):
    """A tracepoint and the positions of its arguments. `to`: ifindex by number; else `device` is the one that lost frames."""

    name: str
    device: int  # whose network namespace counts
    error: int
    frames: int = -1  # how many; -1: one
    to: int = -1


_TRACEPOINTS = (
    _Tracepoint("xdp_redirect_err", device=0, error=3, to=6),
    _Tracepoint("xdp_devmap_xmit", device=1, error=4, frames=3),
    _Tracepoint("xdp_bulk_tx", device=0, error=3, frames=2),
)


class SendErrorCounter:
    """The counts, once `start` has found what it needs."""

    def __init__(self) -> None:
        self._map = -1
        self._fds: list[int] = []

    def start(self) -> bool:
        """Start to count; return whether this kernel allows it. Reads the kernel's BTF (5 MB): call it in a thread."""
        offsets = btf.kernel_offsets(*_MEMBERS)
        if offsets is None:
            return False
        namespace = os.stat(_OWN_NAMESPACE).st_ino
        try:
            self._map = bpf_map.map_create(MapType.HASH, _KEY.size, _VALUE.size, DEVICES, 0, "lb_send_errors")
            for point in _TRACEPOINTS:
                self._attach(point, offsets, namespace)
        except OSError as error:
            log.info("frames that devices do not take are not counted", extra={"error": str(error)})
            self.close()
            return False
        return True

    def _attach(self, point: _Tracepoint, offsets: tuple[int, ...], namespace: int) -> None:
        code = _program(point, offsets, namespace, self._map)
        loaded = bpf_prog.prog_load(ProgType.RAW_TRACEPOINT, code, point.name)
        if loaded.fd < 0:
            raise OSError(loaded.errno, os.strerror(loaded.errno), point.name)
        self._fds.append(loaded.fd)
        self._fds.append(bpf_prog.raw_tracepoint_open(loaded.fd, point.name))

    def read(self) -> dict[int, SendErrors]:
        """Return the counts by ifindex."""
        out: dict[int, SendErrors] = {}
        key = bpf_map.map_next_key(self._map, None, _KEY.size) if self._map >= 0 else None
        while key is not None and len(out) < DEVICES:
            value = bpf_map.map_lookup(self._map, key, _VALUE.size)
            if value is not None:
                frames, number = _VALUE.unpack(value)
                out[_KEY.unpack(key)[0]] = SendErrors(frames, abs(number))
            key = bpf_map.map_next_key(self._map, key, _KEY.size)
        return out

    def close(self) -> None:
        """Remove the programs."""
        for fd in (*self._fds, self._map):
            with contextlib.suppress(OSError):
                if fd >= 0:
                    os.close(fd)
        self._fds, self._map = [], -1


REFUSALS = frozenset({errno.EOPNOTSUPP, errno.ENXIO})  # it takes no frames; the other end of a veth does not poll
# The stack of the programs: key of the map, a value of zeros, values read from the kernel.
_KEY_AT, _VALUE_AT, _READ_AT = -8, -24, -32
_CTX, _FRAMES, _POINTER = 6, 7, 8  # registers that calls preserve
_FRAME_POINTER = 10
_NO_EXIST = 1  # BPF_NOEXIST
_TO_END = -1  # as a jump's offset: to the last two instructions


def _program(point: _Tracepoint, offsets: tuple[int, ...], namespace: int, map_fd: int) -> bytes:
    """Return the instructions for a tracepoint."""
    ifindex, nd_net, ns, inum = offsets
    code = [insn(MOV64_REG, _CTX, 1)]
    if point.frames >= 0:
        code += [insn(LDX_U32, _FRAMES, _CTX, 8 * point.frames), insn(JEQ_IMM, _FRAMES, 0, _TO_END, 0)]
    else:
        code += [insn(MOV64_IMM, _FRAMES, imm=1)]
    code += [insn(LDX_U64, _POINTER, _CTX, 8 * point.device), *_read_kernel(nd_net, 8)]
    code += [insn(LDX_U64, _POINTER, _FRAME_POINTER, _READ_AT), *_read_kernel(ns + inum, 4)]
    code += [insn(LDX_U32, 1, _FRAME_POINTER, _READ_AT), *_load_imm64(2, namespace), insn(JNE_REG, 1, 2, _TO_END)]
    if point.to >= 0:
        code += [insn(LDX_U64, 1, _CTX, 8 * point.to)]
    else:
        code += [insn(LDX_U64, _POINTER, _CTX, 8 * point.device), *_read_kernel(ifindex, 4)]
        code += [insn(LDX_U32, 1, _FRAME_POINTER, _READ_AT)]
    code += [insn(STX_U32, _FRAME_POINTER, 1, _KEY_AT), *_count(map_fd, point.error)]
    return b"".join(_to_end(code)) + insn(MOV64_IMM, 0, imm=0) + insn(EXIT)


def _count(map_fd: int, error: int) -> list[bytes]:
    """Create the entry of the key if there is none, then add to it."""
    map_and_key = [
        *_load_imm64(1, map_fd, PSEUDO_MAP_FD), insn(MOV64_REG, 2, _FRAME_POINTER), insn(ADD64_IMM, 2, imm=_KEY_AT)
    ]  # fmt: skip
    zeros = [insn(ST_U64, _FRAME_POINTER, 0, _VALUE_AT), insn(ST_U64, _FRAME_POINTER, 0, _VALUE_AT + 8)]
    value = [insn(MOV64_REG, 3, _FRAME_POINTER), insn(ADD64_IMM, 3, imm=_VALUE_AT), insn(MOV64_IMM, 4, imm=_NO_EXIST)]
    return [
        *zeros, *map_and_key, *value, insn(CALL, imm=_MAP_UPDATE),
        *map_and_key, insn(CALL, imm=_MAP_LOOKUP), insn(JEQ_IMM, 0, 0, _TO_END, 0),
        insn(ATOMIC_U64, 0, _FRAMES, 0, ATOMIC_ADD), insn(LDX_U64, 1, _CTX, 8 * error), insn(STX_U64, 0, 1, 8),
    ]  # fmt: skip


def _read_kernel(offset: int, size: int) -> list[bytes]:
    """Read `size` bytes of the kernel at the pointer + offset to the stack; zeros if that fails."""
    return [
        insn(ST_U64, _FRAME_POINTER, 0, _READ_AT), insn(MOV64_REG, 3, _POINTER), insn(ADD64_IMM, 3, imm=offset),
        insn(MOV64_REG, 1, _FRAME_POINTER), insn(ADD64_IMM, 1, imm=_READ_AT),
        insn(MOV64_IMM, 2, imm=size), insn(CALL, imm=_PROBE_READ_KERNEL),
    ]  # fmt: skip


def _load_imm64(register: int, value: int, source: int = 0) -> list[bytes]:
    return [insn(LD_IMM64, register, source, imm=signed(value & 0xFFFFFFFF)), insn(0, imm=value >> 32)]


def _to_end(code: list[bytes]) -> list[bytes]:
    """Set the distance of the jumps to the end."""
    out = []
    for place, word in enumerate(code):
        found = decode(word, 0)
        jumps = found.opcode in (JEQ_IMM, JNE_REG) and found.offset == _TO_END
        out.append(insn(found.opcode, found.dst, found.src, len(code) - place - 1, found.imm) if jumps else word)
    return out
