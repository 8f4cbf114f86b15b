"""Network namespaces by name: create, enter, run programs in them, remove."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.lab import prepared

T = TypeVar("T")
RUN = Path("/run/netns")
FOLDER = "lbagent-lab-"  # under the temporary directory, the pid follows
PREFIX = "lbx"  # names are lbx<pid>-<role>, so that a later run can identify the owner
PATIENCE = 5  # times a time-out that a wait lasts at most on a busy machine
CLONE_NEWNET = 0x40000000
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM, ETHTOOL_SGRO = 0x17, 0x2C
_libc = ctypes.CDLL(None, use_errno=True)


class LabError(RuntimeError):
    """The laboratory could not be set up; the text has the command and its output."""


def run(*argv: str, text: str | None = None) -> str:
    """Run a command and return its output; raise LabError with its messages if it fails."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}\n{text or ''}".strip())
    return done.stdout


def setns(path: Path | str) -> None:
    """Move the calling thread into a network namespace."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if _libc.setns(fd, CLONE_NEWNET):
            raise LabError(f"setns {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)


class Namespace:
    """One named network namespace."""

    def __init__(self, role: str, tag: str = "") -> None:
        """Create it, with loopback up and IPv6 without duplicate address detection (which costs a second)."""
        self.role = role
        self.name = f"{PREFIX}{os.getpid()}-{tag}{role}"
        self.path = RUN / self.name
        run("ip", "netns", "add", self.name)
        try:
            self._prepare()
        except BaseException:
            self.delete()
            raise

    def _prepare(self) -> None:
        self.ip("link set lo up")
        for family in ("all", "default"):
            self.sysctl(f"ipv6/conf/{family}/accept_dad", 0)
            self.sysctl(f"ipv6/conf/{family}/accept_ra", 0)
            self.sysctl(f"ipv4/conf/{family}/rp_filter", 0)

    def ip(self, *lines: str) -> None:
        """Run several `ip` commands in one process."""
        run("ip", "-n", self.name, "-batch", "-", text="\n".join(lines) + "\n")

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread into this namespace for the block (sockets opened in it stay in the namespace)."""
        home = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        back = os.open(home, os.O_RDONLY)
        try:
            setns(self.path)
            yield
        finally:
            _libc.setns(back, CLONE_NEWNET)
            os.close(back)

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function in this namespace and return its result."""
        with self.entered():
            return function(*args, **kwargs)

    def sysctl(self, name: str, value: int | str) -> None:
        """Write /proc/sys/net/NAME of this namespace."""
        with self.entered():
            Path("/proc/sys/net", name).write_text(str(value))

    def ifindex(self, device: str) -> int:
        """Return a device's index in this namespace."""
        return self.call(socket.if_nametoindex, device)

    def mac(self, device: str) -> bytes:
        """Return a device's hardware address."""
        with self.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            answer = fcntl.ioctl(s, 0x8927, struct.pack("256s", device.encode()))
        return answer[18:24]

    def checksum_offload_off(self, device: str) -> None:
        """Make the device's packets carry complete checksums.

        A veth leaves TCP and UDP checksums to the hardware; XDP loses the mark for that, and the receiver counts a checksum
        error. By ioctl, as the ethtool program may not be installed.
        """
        self._ethtool(device, ETHTOOL_STXCSUM, 0)

    def receive_offload_on(self, device: str) -> None:
        """Let the device collect received packets (GRO): a veth polls then, and accepts frames that XDP sends from its other end."""
        self._ethtool(device, ETHTOOL_SGRO, 1)

    def _ethtool(self, device: str, command: int, number: int) -> None:
        value = ctypes.create_string_buffer(struct.pack("II", command, number))
        with self.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sQ", device.encode(), ctypes.addressof(value)))

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return argv with a prefix that enters this namespace; the program dies with the thread that started it.

        nsenter and not `ip netns exec`: that one mounts a new /sys, and bpffs disappears with the old one.
        """
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.path}", "--", *argv]

    def popen(self, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[str]:
        """Start a program in this namespace, in its own process group: a terminal's Ctrl-C does not end it.

        Programs that are prepared begin at once (prepared.py).
        """
        if program := prepared.program_of(argv, kwargs.get("env")):
            return prepared.PreparedPopen(program, argv, self.path, **kwargs)
        return subprocess.Popen(self.command(argv), text=True, process_group=0, **kwargs)

    def run(self, argv: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a program in this namespace to its end; its streams are text."""
        process = self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)
        out, err = process.communicate()
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def pids(self) -> list[int]:
        """Return the processes in this namespace."""
        return [int(word) for word in run("ip", "netns", "pids", self.name).split()]

    def delete(self) -> None:
        """Kill its processes (never this one) and remove it."""
        if not self.path.exists():
            return
        for pid in self.pids():
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        run("ip", "netns", "del", self.name)


def veth(left: Namespace, left_device: str, right: Namespace, right_device: str, queues: int = 1) -> None:
    """Join two namespaces by a pair of veth devices, both up."""
    size = f"numtxqueues {queues} numrxqueues {queues}"
    left.ip(f"link add {left_device} {size} type veth peer name {right_device} {size} netns {right.name}")
    left.ip(f"link set {left_device} up")
    right.ip(f"link set {right_device} up")


def filter_groups(switch: Namespace, bridge: str = "br0") -> None:
    """Make a bridge query group members (MLD, IGMP), and from half a second later pass a group's frames only to its members.

    Its times are hundredths of a second; the wait for the first answers is the setting at the start of the querier.
    """
    times = "mcast_query_interval 200 mcast_query_response_interval 50 mcast_startup_query_interval 50 mcast_membership_interval 600"
    switch.ip(
        f"link set {bridge} type bridge mcast_snooping 1 {times}", f"link set {bridge} type bridge mcast_querier 1"
    )


def sweep() -> list[str]:
    """Remove namespaces and folders whose owner is dead (killed before it could clean up); return their names."""
    gone = []
    for path in RUN.glob(f"{PREFIX}*-*") if RUN.is_dir() else ():
        if owner_is_dead(path.name[len(PREFIX) :]) and _swept(path):
            gone.append(path.name)
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        if owner_is_dead(path.name[len(FOLDER) :]):
            with contextlib.suppress(LabError):
                run("umount", "-l", str(path / "bpf"))
            shutil.rmtree(path, ignore_errors=True)
            gone.append(path.name)
    return gone


def _swept(path: Path) -> bool:
    """Remove a namespace with its processes; return whether this process removed it, and not another one at the same time."""
    try:
        for pid in run("ip", "netns", "pids", path.name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        run("ip", "netns", "del", path.name)
    except LabError:
        wait_for(lambda: not path.exists(), f"{path}: another process takes it away", timeout_s=2.0)
        return False
    return True


def owner_is_dead(rest: str) -> bool:
    """Return whether the process of a name's suffix `<pid>-...` has ended."""
    owner = rest.split("-", maxsplit=1)[0]
    return owner.isdigit() and not Path("/proc", owner).exists()


def wait_for(
    condition: Callable[[], T], what: str, timeout_s: float = 10.0, step_s: float = 0.02, *, exact: bool = False
) -> T:
    """Wait until the condition returns a true value and return it; LabError names the condition after a time-out.

    Time in which processes wait for a processor does not count, up to PATIENCE times the time-out: other tests run beside this one.
    `exact`: all time counts, where the time is what is tested.
    """
    watch = Stopwatch()
    while True:
        value = condition()
        if value:
            return value
        if (watch.real_s if exact else watch.s) > timeout_s:
            raise LabError(f"{what}: not within {timeout_s:g} s (last: {value!r})")
        time.sleep(step_s)


class Stopwatch:
    """The time since it was made."""

    def __init__(self) -> None:
        self._began, self._short_before = time.monotonic(), short_of_processors_s()

    @property
    def real_s(self) -> float:
        """All of it."""
        return time.monotonic() - self._began

    @property
    def s(self) -> float:
        """What counts for a limit: not the time in which processes waited for a processor, but a PATIENCE-th of all time at least."""
        real = self.real_s
        return real - min(short_of_processors_s() - self._short_before, real * (1 - 1 / PATIENCE))


def short_of_processors_s() -> float:
    """Return how long processes of this machine have waited for a processor since it started, in seconds; 0 without PSI.

    Source: Documentation/accounting/psi.rst, `some` of /proc/pressure/cpu.
    """
    try:
        first = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:  # a kernel without PSI, or one that has it off
        return 0.0
    return int(first.rpartition("total=")[2]) / 1e6
