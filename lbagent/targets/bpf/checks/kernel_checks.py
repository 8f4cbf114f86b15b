"""What this kernel allows, and where the programs come from."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from lbagent.bpf.compiler.c_source import ARTIFACT_PATH
from lbagent.bpf.compiler.compile import bcc_version
from lbagent.bpf.load.loader import MIN_KERNEL
from lbagent.errors import Unsupported
from lbagent.kernel import features
from lbagent.model.check import Check, Level, Result, When
from lbagent.targets.bpf.checks.offline_context import OfflineContext


def load_refused(_context: OfflineContext) -> Iterator[Result]:
    """Load a small program."""
    error = features.can_load()
    if error == 0:
        yield Result(level=Level.OK)
    elif error in (errno.EPERM, errno.EACCES):
        yield Result(
            text="no permission to load BPF programs",
            remedy="run as root (or with CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)",
        )
    else:
        yield Result(
            values={"error": os.strerror(error)},
            exit_code=Unsupported.exit_code if error == errno.ENOSYS else 1,
        )


def kernel_too_old(_context: OfflineContext) -> Iterator[Result]:
    """Compare the kernel's version with the oldest supported one."""
    values = {
        "release": os.uname().release,
        "machine": platform.machine(),
        "oldest": ".".join(map(str, MIN_KERNEL)),
    }
    is_good = features.kernel_version() >= MIN_KERNEL
    yield Result(values=values, level=Level.OK if is_good else None, exit_code=Unsupported.exit_code)


def jit_off(_context: OfflineContext) -> Iterator[Result]:
    """Read the switch of the BPF JIT; where it cannot be read there is no result."""
    is_on = features.jit_enabled()
    if is_on is not None:
        yield Result(level=Level.OK if is_on else None)


def no_tcx(_context: OfflineContext) -> Iterator[Result]:
    """Test for TCX links."""
    if features.can_load() == 0:
        yield Result(level=Level.OK if features.has_tcx() else None)


def no_reuseport_proxy(_context: OfflineContext) -> Iterator[Result]:
    """Compare the kernel's version with the first one whose bpf_sk_assign() accepts sockets with SO_REUSEPORT."""
    yield Result(level=Level.OK if features.kernel_version() >= (6, 6) else None)


def no_btf(_context: OfflineContext) -> Iterator[Result]:
    """Test for the kernel's BTF."""
    if not Path("/sys/kernel/btf/vmlinux").exists():
        yield Result()


def programs_missing(context: OfflineContext) -> Iterator[Result]:
    """Find compiled programs, and BCC, which makes them."""
    artifact = context.config.artifact
    path, version = Path(artifact or ARTIFACT_PATH), bcc_version()
    if os.access(path, os.R_OK):  # this user may have no permission
        yield Result(values={"path": path}, level=Level.OK)
        if not version:
            text = "BCC is not installed; only `lbagent bpf build` needs it"
            yield Result("bcc", text=text, remedy="", level=Level.NOTE)
    elif artifact:
        text = f"--artifact {path} does not exist, or this user may not read it"
        yield Result(text=text, remedy="leave the flag out, or make the file with `lbagent bpf build -o FILE`")
    elif version:
        text = f"programs are not built yet; BCC {version} will build them"
        yield Result(text=text, remedy="lbagent bpf build", level=Level.NOTE)
    else:
        yield Result(values={"path": path})


CHECKS = (
    Check(
        "load-refused",
        "whether BPF programs can be loaded",
        load_refused,
        "this kernel refuses BPF programs: {error}",
        "use a kernel with CONFIG_BPF_SYSCALL",
        good="BPF programs can be loaded",
        when=When.OFFLINE,
        level=Level.ERROR,
    ),
    Check(
        "kernel-too-old",
        "the version of the kernel",
        kernel_too_old,
        "Linux {release} is too old",
        "lbagent needs Linux {oldest} or newer",
        good="Linux {release} on {machine} ({oldest} or newer is needed)",
        when=When.OFFLINE,
        level=Level.ERROR,
    ),
    Check(
        "jit-off",
        "whether the kernel compiles BPF programs",
        jit_off,
        "the BPF JIT is off: packets cost several times as much",
        "sysctl -w net.core.bpf_jit_enable=1",
        good="the BPF JIT is on",
        when=When.OFFLINE,
    ),
    Check(
        "no-tcx",
        "how tc programs are attached",
        no_tcx,
        "tc programs are attached by clsact filters (TCX needs Linux 6.6)",
        good="tc programs are attached by TCX links",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
    Check(
        "no-reuseport-proxy",
        "whether sockets of L7 proxies may have SO_REUSEPORT",
        no_reuseport_proxy,
        "L7 proxies (lbagent.io/l7-proxy-port) get nothing at sockets with SO_REUSEPORT: the kernel accepts them from Linux 6.6 on",
        "HAProxy: `noreuseport`; Envoy: `enable_reuse_port: false`",
        good="sockets of L7 proxies may have SO_REUSEPORT",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
    Check(
        "no-btf",
        "whether the kernel has BTF",
        no_btf,
        "this kernel has no BTF; lbagent does not need it",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
    Check(
        "programs-missing",
        "the compiled programs (`--artifact`), and BCC",
        programs_missing,
        "no built programs at {path}, and no BCC to build them",
        "apt install python3-bpfcc",
        good="built programs: {path}",
        when=When.OFFLINE,
        level=Level.ERROR,
    ),
)
