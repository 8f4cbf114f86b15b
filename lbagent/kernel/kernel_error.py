"""A failed system call as an error of this project: what failed, on which object, and what to do about it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from lbagent.errors import KernelError, LbError, Unsupported


@contextlib.contextmanager
def kernel_errors(op: str, subject: str, advice: str = "") -> Iterator[None]:
    """Turn OSError into KernelError (Unsupported where there is no bpf(2)) with the operation and its object."""
    try:
        yield
    except OSError as error:
        raise kernel_error(op, error.errno or 0, subject, advice) from None


def kernel_error(op: str, number: int, subject: str, advice: str = "") -> LbError:
    """Return the error of a failed call; `advice` is for an errno that has no advice of its own."""
    if number == errno.ENOSYS:
        return Unsupported("bpf(2)", "5.15", "it was built without CONFIG_BPF_SYSCALL")
    if number in (errno.EPERM, errno.EACCES):
        advice = "run as root" if os.geteuid() else "CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN are needed"
    if number == errno.ENOMEM:
        advice = advice or "no memory for a map of this size; choose a smaller one or raise RLIMIT_MEMLOCK"
    return KernelError(op, number, subject, advice)
