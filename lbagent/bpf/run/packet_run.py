"""BPF_PROG_TEST_RUN: bytes in, verdict and bytes out. No device and no traffic needed; for tests and benchmarks.

The kernel looks interface indexes up in the calling thread's network namespace, and uses that namespace's loopback without one:
run inside an empty namespace, or a route of the host determines the result.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from lbagent.kernel import bpf_prog
from lbagent.kernel.kernel_error import kernel_errors

SKB_CTX_BYTES = 192  # struct __sk_buff up to tstamp_type and hwtstamp
_SKB_MARK, _SKB_INGRESS_IFINDEX, _SKB_IFINDEX, _SKB_GSO_SIZE = 8, 36, 40, 176
LOOPBACK = 1


class Xdp(IntEnum):
    """XDP verdicts. Source: enum xdp_action."""

    ABORTED = 0
    DROP = 1
    PASS = 2
    TX = 3
    REDIRECT = 4


class Tc(IntEnum):
    """tc verdicts. Source: include/uapi/linux/pkt_cls.h."""

    UNSPEC = -1
    OK = 0
    SHOT = 2
    REDIRECT = 7


@dataclass(frozen=True)
class Result:
    """`verdict` is an Xdp or Tc member's number; `packet` the frame as the program left it, `metadata` what XDP put before it.

    `mark`: by which the stack routes it (tc).
    """

    verdict: int
    packet: bytes
    duration_ns: int
    metadata: bytes = b""
    mark: int = 0


def run_xdp(fd: int, packet: bytes, *, ifindex: int = 0, repeat: int = 1, metadata: bytes = b"") -> Result:
    """Run an XDP program as if `packet` came in by interface `ifindex` (0: the kernel's default, loopback).

    `metadata` precedes the packet: a multiple of four bytes.
    """
    ctx = struct.pack("<6I", len(metadata), len(metadata + packet), 0, ifindex, 0, 0)
    with kernel_errors("test run", "an XDP program"):
        out = bpf_prog.prog_test_run(fd, metadata + packet, ctx=ctx, repeat=repeat)
    (start,) = struct.unpack_from("<I", out.ctx)  # struct xdp_md.data, counted from the metadata
    return Result(out.retval, out.data[start:], out.duration_ns, out.data[:start])


def run_tc(
    fd: int,
    packet: bytes,
    *,
    ifindex: int = LOOPBACK,
    came_by: int | None = None,
    mark: int = 0,
    gso_size: int = 0,
    repeat: int = 1,
) -> Result:
    """Run a tc program on `packet` at interface `ifindex`; `gso_size`: it is one of many segments with so many bytes each.

    `came_by` is the interface by which it came in (default: the same; 0: the node itself sends it).

    The kernel removes the Ethernet header and sets skb->protocol from it, as a driver does.
    """
    ctx = bytearray(SKB_CTX_BYTES)
    struct.pack_into("<I", ctx, _SKB_MARK, mark)
    struct.pack_into("<I", ctx, _SKB_GSO_SIZE, gso_size)
    struct.pack_into("<II", ctx, _SKB_INGRESS_IFINDEX, ifindex if came_by is None else came_by, ifindex)
    with kernel_errors("test run", "a tc program"):
        out = bpf_prog.prog_test_run(fd, packet, ctx=bytes(ctx), repeat=repeat)
    verdict = out.retval - (1 << 32) if out.retval >> 31 else out.retval
    (left,) = struct.unpack_from("<I", out.ctx, _SKB_MARK)
    return Result(verdict, out.data, out.duration_ns, mark=left)
