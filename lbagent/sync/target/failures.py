"""What could not be written: what was there before keeps serving, and it is tried again with growing pauses."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.sync.backoff import delays
from lbagent.sync.target.shadow import Shadow

log = logging.getLogger(__name__)
MAX_LOGGED = 20  # failing frontends named one by one in a pass


class Failure(Struct):
    """A frontend that could not be written."""

    error: LbError
    retry_at: float
    delays: Iterator[float]


class Failures:
    """Failing frontends, and what fails and belongs to no frontend (`trouble`)."""

    def __init__(self) -> None:
        """Start without any."""
        self.frontends: dict[L3n4Addr, Failure] = {}
        self.trouble = ""
        self.count = 0  # errors so far
        self._retry_at: float | None = None  # of the trouble
        self._again: Iterator[float] | None = None

    def due(self) -> float | None:
        """Return when something must be tried again; None when nothing fails."""
        dues = [failure.retry_at for failure in self.frontends.values()]
        if self._retry_at is not None:
            dues.append(self._retry_at)
        return min(dues) if dues else None

    def hold(self, shadow: Shadow, now: float) -> set[L3n4Addr]:
        """Leave out failing frontends that are not due (a change of their own brings them back); plan the due ones again.

        Return those left out, which are dirty again after the plan.
        """
        early = {frontend for frontend, failure in self.frontends.items() if failure.retry_at > now}
        held = early & shadow.dirty
        shadow.dirty -= held
        shadow.dirty |= self.frontends.keys() - early
        return held

    def written(self, frontends: Iterable[L3n4Addr]) -> None:
        """Take note of what got through."""
        for frontend in frontends:
            self.frontends.pop(frontend, None)

    def failed(self, errors: Iterable[tuple[L3n4Addr, LbError]], now: float) -> None:
        """Take note of what did not; what fails as before is not said again."""
        for number, (frontend, error) in enumerate(errors):
            known = self.frontends.get(frontend)
            again = known.delays if known else delays()
            pause = next(again)
            self.frontends[frontend] = Failure(error, now + pause, again)
            self.count += 1
            if number < MAX_LOGGED and (known is None or str(known.error) != str(error)):
                log.error(
                    "a frontend could not be written",
                    extra={"frontend": frontend.with_protocol(), "error": str(error), "retry_s": round(pause, 2)},
                )

    def forget(self, wanted: Mapping[L3n4Addr, object], kept: Collection[L3n4Addr], shadow: Shadow) -> None:
        """Forget frontends that nobody wants any more, but for those that could not be taken away, and `kept`."""
        still_there = shadow.dirty & shadow.frontends.keys()
        for frontend in self.frontends.keys() - wanted.keys() - still_there - set(kept):
            del self.frontends[frontend]
            shadow.dirty.discard(frontend)

    def troubled(self, errors: Sequence[LbError], now: float) -> None:
        """Take note of what failed beside single frontends in a pass."""
        if not errors:
            self._again, self._retry_at, self.trouble = None, None, ""
            return
        self._again = self._again or delays()
        self._retry_at = now + next(self._again)
        if str(errors[0]) != self.trouble:
            log.error("the maps could not be written", extra={"error": str(errors[0]), "errors": len(errors)})
        self.trouble = str(errors[0])
        self.count += len(errors)
