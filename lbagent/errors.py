"""The one exception tree. Each class owns the exit code the command line ends with (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar


class LbError(Exception):
    """Base of every error lbagent raises on purpose; its text is one clear sentence for an operator."""

    exit_code: ClassVar[int] = 1

    @property
    def key(self) -> Hashable:
        """What tells this failure from others: it is equal when the same thing fails again, whatever the numbers in the text."""
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
    """The request is understood and not allowed now."""

    exit_code = 4


class InvalidTransition(Refused):
    """A backend may not go from one state to the other. Source: cilium pkg/loadbalancer transition table."""

    def __init__(self, old: str, new: str, subject: str = "backend") -> None:
        super().__init__(f"{subject}: state {old} cannot become {new}; nothing was changed")
        self.old = old
        self.new = new


class LastBackend(Refused):
    """A change of states would leave a Service without a backend, and it was asked to spare the last one."""


class Conflict(Refused):
    """It is held already: by another agent, by an older Service."""


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
    """A feature this kernel or machine lacks; names it and the kernel version that brought it."""

    exit_code = 77

    def __init__(self, feature: str, min_kernel: str = "", advice: str = "") -> None:
        text = f"{feature} is not supported by this kernel"
        if min_kernel:
            text += f" (needs Linux {min_kernel} or newer)"
        super().__init__(text + (f"; {advice}" if advice else ""))
        self.feature = feature
        self.min_kernel = min_kernel


class KernelError(LbError):
    """A bpf(2) or netlink call failed. errno is kept so that callers can tell a full map from no rights."""

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
    """A map has no room left (E2BIG or ENOSPC): what is written keeps serving."""

    def __init__(self, op: str, errno: int, subject: str, advice: str = "") -> None:
        """Say it in the operator's words: the errno's own text is "Argument list too long"."""
        super().__init__(op, errno, subject, advice)
        self.args = (f"map {subject} is full" + (f": {advice}" if advice else ""),)
        self.maps: frozenset[str] = frozenset()  # all maps without room, as a plan found before a write
        self.shares: dict[
            tuple[str, str], tuple[int, int]
        ] = {}  # by map and namespace of which the share is used: entries left of it


class BeyondShare(MapFull):
    """A namespace has its fair share of a map that cannot hold what all want: it gets no more, and keeps what it has."""

    def __init__(self, subject: str, text: str) -> None:
        super().__init__("insert", 7, subject)
        self.args = (text,)


class VerifierError(LbError):
    """The kernel refused a program: the last lines of the log, and where the whole log is."""


class CompileError(LbError):
    """BCC refused the C source: real file and line."""


class LayoutMismatch(LbError):
    """What the compiler, a pinned map and maps/layout.py say about a record differ; nothing was loaded."""
