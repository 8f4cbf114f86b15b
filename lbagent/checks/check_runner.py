"""Runs one check repeatedly in the agent, and keeps the start time of each result."""

from __future__ import annotations

import inspect
import time
from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

from lbagent.model.check import MAX_RESULTS, Check, Finding, Level, Result

C = TypeVar("C")


class CheckRunner(Generic[C]):
    """A check of a running agent. A result counts once it has been there for `for_s`."""

    def __init__(self, check: Check[C]) -> None:
        self.check = check
        self._since: dict[Hashable, float] = {}

    async def run(self, context: C) -> list[Finding]:
        """Return the current problems, in words."""
        found = self.check.run(context)
        return self.findings(context, await found if inspect.isawaitable(found) else found)

    def findings(self, context: C, found: Iterable[Any]) -> list[Finding]:
        """Return the results of the check's `run` in words."""
        check = self.check
        held = self._held(found) if check.for_s else list(found)
        shown = held[:MAX_RESULTS] if check.more else held
        results: Iterable[Result] = check.describe(context, shown) if check.describe else shown
        out = [check.finding(result) for result in results if result.level is not Level.OK]
        if len(held) > len(shown):
            text = check.more.format(count=len(held) - len(shown))
            out.append(check.finding(Result("more", text=text, remedy="")))
        return out

    def _held(self, found: Iterable[Any]) -> list[Any]:
        now = time.monotonic()
        items = {each.subject if isinstance(each, Result) else each: each for each in found}
        self._since = {key: self._since.get(key, now) for key in items}
        return [items[key] for key, since in self._since.items() if now - since >= self.check.for_s]
