"""The one exception tree. Each class owns the exit code the command line ends with (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar


class LbError(Exception):
    """Base of every error lbagent raises on purpose; its text is one clear sentence for an operator."""

    exit_code: ClassVar[int] = 1

    @property
    def key(self) -> Hashable:
        """Identifies the failure: equal if the same operation fails again, also with other numbers in the text."""
        return type(self), str(self)


class ConfigError(LbError):
    """A flag, a configuration key, an argument or a place of a file is wrong. The text begins with `FILE[:LINE]: `."""

    exit_code = 2

    def __init__(self, problem: str = "", *, file: str = "", line: int = 0) -> None:
        where = f"{file}:{line}" if file and line else file
        super().__init__(f"{where}: {problem}" if where else problem)
        self.problem = problem
        self.file = file
        self.line = line


class NotFound(LbError):
    """The named service, backend or device does not exist."""

    exit_code = 3


class Refused(LbError):
    """The request is valid and not allowed now."""

    exit_code = 4


class InvalidTransition(Refused):
    """A backend may not go from one state to the other. Source: cilium pkg/loadbalancer transition table."""

    def __init__(self, old: str, new: str, subject: str = "backend") -> None:
        super().__init__(f"{subject}: state {old} cannot become {new}; nothing was changed")
        self.old = old
        self.new = new


class LastBackend(Refused):
    """A change of states would leave a Service without a backend, and the request spares the last one."""


class Conflict(Refused):
    """Another agent or an older Service holds it already."""


class AgentUnreachable(LbError):
    """No agent answers on the socket."""

    exit_code = 5


class HostUnreachable(LbError):
    """A host, or the container runtime on it, does not answer."""

    exit_code = 5


class TimedOut(LbError):
    """The wait ended before the condition held."""

    exit_code = 6


class Unsupported(LbError):
    """A feature that this kernel or machine lacks, with the kernel version that introduced it."""

    exit_code = 77

    def __init__(self, feature: str, min_kernel: str = "", advice: str = "") -> None:
        text = f"{feature} is not supported by this kernel"
        if min_kernel:
            text += f" (needs Linux {min_kernel} or newer)"
        super().__init__(text + (f"; {advice}" if advice else ""))
        self.feature = feature
        self.min_kernel = min_kernel


class KernelError(LbError):
    """A bpf(2) or netlink call failed. errno is kept so that callers can distinguish a full map from missing permissions."""

    def __init__(self, op: str, errno: int, subject: str, advice: str = "") -> None:
        import os

        text = f"{op} on {subject} failed: {os.strerror(errno)} (errno {errno})"
        super().__init__(text + (f"; {advice}" if advice else ""))
        self.op = op
        self.errno = errno
        self.subject = subject
        self.done = 0  # entries of a batch that are written

    @property
    def key(self) -> Hashable:
        """The call, its errno and its subject."""
        return type(self), self.op, self.errno, self.subject


class MapFull(KernelError):
    """A map has no room left (E2BIG or ENOSPC): written entries continue to serve."""

    def __init__(self, op: str, errno: int, subject: str, advice: str = "") -> None:
        """Return a message for the operator: the errno's own text is "Argument list too long"."""
        super().__init__(op, errno, subject, advice)
        self.args = (f"map {subject} is full" + (f": {advice}" if advice else ""),)
        self.maps: frozenset[str] = frozenset()  # all maps without room, as a plan found before a write
        self.shares: dict[
            tuple[str, str], tuple[int, int]
        ] = {}  # by map and namespace with a used share: entries left of it


class BeyondShare(MapFull):
    """A namespace has its fair share of a map that cannot hold all wanted entries: it gets no more, and keeps those that it has."""

    def __init__(self, subject: str, text: str) -> None:
        super().__init__("insert", 7, subject)
        self.args = (text,)


class VerifierError(LbError):
    """The kernel rejected a program: the last lines of the log, and the path of the whole log."""


class CompileError(LbError):
    """BCC rejected the C source: real file and line."""


class LayoutMismatch(LbError):
    """The layouts of a record in the compiler, a pinned map and maps/layout.py differ; nothing was loaded."""
