"""What this kernel and its devices can do: cached questions, each asked once by trying."""

from __future__ import annotations

import errno
import os
import re
from functools import cache
from pathlib import Path

from lbagent.kernel import bpf_link, bpf_prog
from lbagent.kernel.bpf_link import AttachType
from lbagent.kernel.bpf_prog import ProgType
from lbagent.kernel.opcodes import returning
from lbagent.kernel.xdp_features import XdpFeature, xdp_features

_PROBE_PROGRAM = returning(2)  # XDP_PASS
_NO_SUCH_INDEX = 0x7FFFFFFF


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
    """Ask the kernel whether a device's driver runs XDP programs; None where it cannot tell (before Linux 6.3, no such device)."""
    found = xdp_features(ifindex).get(ifindex)
    return None if found is None else bool(found & XdpFeature.BASIC)
