"""What this kernel and its devices can do: cached questions, each asked once by trying."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from functools import cache
from pathlib import Path

from lbagent.kernel import bpf_link, bpf_prog
from lbagent.kernel.bpf_link import AttachType
from lbagent.kernel.bpf_prog import ProgType
from lbagent.kernel.opcodes import returning

_PROBE_PROGRAM = returning(2)  # XDP_PASS
_NO_SUCH_INDEX = 0x7FFFFFFF

# generic netlink, include/uapi/linux/{genetlink,netdev}.h
_NETLINK_GENERIC = 16
_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
_NETDEV_CMD_DEV_GET, _NETDEV_A_DEV_IFINDEX, _NETDEV_A_DEV_XDP_FEATURES = 1, 1, 3
_NLM_F_REQUEST, _NLMSG_ERROR = 1, 2
_XDP_BASIC = 1
_ATTR_TYPE_MASK = 0x3FFF


@cache
def kernel_version() -> tuple[int, int]:
    """Return (major, minor) of the running kernel."""
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _loads(kind: ProgType) -> int:
    """Return 0 if a two-instruction program loads, else the errno."""
    loaded = bpf_prog.prog_load(kind, _PROBE_PROGRAM, "lb_probe")
    if loaded.fd >= 0:
        os.close(loaded.fd)
    return loaded.errno


@cache
def can_load() -> int:
    """Return 0 if this process may load XDP programs, else the errno (EPERM: no rights; EINVAL, ENOSYS: no BPF)."""
    return _loads(ProgType.XDP)


@cache
def has_tcx() -> bool:
    """Return whether this kernel attaches tc programs by link (TCX, Linux 6.6). Asks for a device that cannot exist."""
    loaded = bpf_prog.prog_load(ProgType.SCHED_CLS, _PROBE_PROGRAM, "lb_probe")
    if loaded.fd < 0:
        return False
    try:
        bpf_link.link_create(loaded.fd, _NO_SUCH_INDEX, AttachType.TCX_INGRESS)
    except OSError as error:
        return error.errno == errno.ENODEV
    finally:
        os.close(loaded.fd)
    return True


def jit_enabled() -> bool | None:
    """Return whether programs are compiled to machine code; None if the kernel does not say."""
    try:
        return Path("/proc/sys/net/core/bpf_jit_enable").read_text(encoding="ascii").strip() != "0"
    except OSError:
        return None


def has_native_xdp(ifindex: int) -> bool | None:
    """Ask the kernel whether a device's driver runs XDP programs; None where it cannot tell (before Linux 6.3, no such device).

    Source: enum netdev_xdp_act of include/uapi/linux/netdev.h.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as netlink:
        netlink.settimeout(2)
        family = _ask(netlink, _GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_NAME, b"netdev\0").get(
            _CTRL_ATTR_FAMILY_ID
        )
        if family is None:
            return None
        number = struct.unpack("<H", family)[0]
        answer = _ask(netlink, number, _NETDEV_CMD_DEV_GET, _NETDEV_A_DEV_IFINDEX, struct.pack("<I", ifindex))
    raw = answer.get(_NETDEV_A_DEV_XDP_FEATURES)
    if raw is None:
        return None
    return bool(int.from_bytes(raw, "little") & _XDP_BASIC)


def _ask(netlink: socket.socket, family: int, command: int, attribute: int, value: bytes) -> dict[int, bytes]:
    """Send one request with one attribute; return the attributes of the answer, {} for an error."""
    padded = value + bytes(-len(value) % 4)
    body = struct.pack("<BBHHH", command, 1, 0, 4 + len(value), attribute) + padded
    netlink.send(struct.pack("<IHHII", 16 + len(body), family, _NLM_F_REQUEST, 1, 0) + body)
    try:
        data = netlink.recv(1 << 16)
    except TimeoutError:
        return {}
    length, kind = struct.unpack_from("<IH", data)
    out: dict[int, bytes] = {}
    at = 20  # both headers
    while kind != _NLMSG_ERROR and at + 4 <= length:
        size, name = struct.unpack_from("<HH", data, at)
        if size < 4:
            break
        out[name & _ATTR_TYPE_MASK] = data[at + 4 : at + size]
        at += size + (-size % 4)
    return out
