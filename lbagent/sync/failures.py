"""Failed writes: the earlier entries continue to serve, and the write is retried with growing pauses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.sync.backoff import Failure, delays, failed_again

log = logging.getLogger(__name__)
MAX_LOGGED = 20  # failing frontends that are logged one by one in a pass


class Failures:
    """Failing frontends, and failures that belong to no frontend (`general`)."""

    def __init__(self) -> None:
        self.frontends: dict[L3n4Addr, Failure] = {}
        self.general: Failure | None = None
        self.count = 0  # errors so far

    def retry_at(self) -> float | None:
        """Return the time of the next retry; None if nothing fails."""
        times = [failure.retry_at for failure in self.frontends.values()]
        if self.general:
            times.append(self.general.retry_at)
        return min(times) if times else None

    def not_due(self, now: float) -> set[L3n4Addr]:
        """Return the failing frontends whose retry is later."""
        return {frontend for frontend, failure in self.frontends.items() if failure.retry_at > now}

    def retry_now(self, frontends: Iterable[L3n4Addr], now: float) -> None:
        """Retry failing frontends at once: the cause may be gone."""
        for frontend in frontends:
            self.frontends[frontend].retry_at = now

    def written(self, frontends: Iterable[L3n4Addr]) -> None:
        """Forget the failures of frontends that were written, or are no longer wanted."""
        for frontend in frontends:
            self.frontends.pop(frontend, None)

    def failed(self, errors: Iterable[tuple[L3n4Addr, LbError]], now: float) -> None:
        """Record frontends that could not be written; a failure is logged if it differs from the one before."""
        for number, (frontend, error) in enumerate(errors):
            before = self.frontends.get(frontend)
            failure = self.frontends[frontend] = failed_again(before, error, now, delays)
            self.count += 1
            if number < MAX_LOGGED and (before is None or before.error.key != error.key):
                log.error(
                    "a frontend could not be written",
                    extra={
                        "frontend": frontend.with_protocol(),
                        "error": str(error),
                        "retry_s": round(failure.retry_at - now, 2),
                    },
                )

    def failed_in_general(self, errors: Sequence[LbError], now: float) -> None:
        """Record the failures of a pass beside single frontends; without errors, that there were none."""
        before, self.general = self.general, None
        if not errors:
            return
        self.general = failed_again(before, errors[0], now, delays)
        self.count += len(errors)
        if before is None or before.error.key != errors[0].key:
            log.error("the maps could not be written", extra={"error": str(errors[0]), "errors": len(errors)})
