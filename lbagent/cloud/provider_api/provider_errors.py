"""The errors that a provider may raise. Source: k8s.io/cloud-provider, cloud.go (behaviour)."""

from __future__ import annotations

from lbagent.cloud.provider_api.provider_records import LoadBalancerStatus
from lbagent.errors import LbError


class RetryAfter(LbError):
    """A failure; the controller retries after so many seconds, not sooner."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class ImplementedElsewhere(LbError):
    """Another program handles this Service; raised by `ensure` and `update`, never by `ensure_deleted`."""

    def __init__(self, message: str = "implemented by alternate to cloud provider") -> None:
        super().__init__(message)


class InstanceNotFound(LbError):
    """The provider has no such instance."""

    def __init__(self, message: str = "instance not found") -> None:
        super().__init__(message)


class DiskNotFound(LbError):
    """The provider has no such disk."""

    def __init__(self, message: str = "disk is not found") -> None:
        super().__init__(message)


class NotSupported(LbError):
    """The provider does not support this."""

    def __init__(self, message: str = "unimplemented") -> None:
        super().__init__(message)


class Refusal(LbError):
    """A request of a Service that cannot be met: a Warning Event with this reason. It is not retried until something changes.

    `status` is the Service's new status; None: its status does not change.
    """

    def __init__(self, reason: str, message: str, *, status: LoadBalancerStatus | None = None) -> None:
        super().__init__(message)
        self.reason, self.status = reason, status
