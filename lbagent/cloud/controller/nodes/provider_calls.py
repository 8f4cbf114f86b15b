"""Calls of a provider's parts: with a timeout and limited concurrency; a failure does not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from lbagent.cloud.controller.service_writer import NotLeading, Outdated
from lbagent.errors import LbError

T = TypeVar("T")
log = logging.getLogger(__name__)
CALL_S = 30.0  # timeout of a call
MAX_CONCURRENT_CALLS = 10


async def answer_of(call: Awaitable[T], within_s: float = CALL_S) -> T:
    """Return a provider's answer. Raises LbError after the timeout, and the provider's errors."""
    try:
        async with asyncio.timeout(within_s) as limit:
            return await call
    except TimeoutError:
        text = f"the provider did not answer within {within_s:g} s" if limit.expired() else "a time-out of the provider"
        raise LbError(text) from None


class Failures:
    """Failures of one kind of work, by name: a repeated error is logged once, until the work succeeds."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._texts: dict[str, str] = {}

    def is_known(self, name: str, error: Exception) -> bool:
        """Return whether the last attempt failed with the same error."""
        return self._texts.get(name) == _text(error)

    def add(self, name: str, error: Exception) -> None:
        """Log a new error."""
        if not self.is_known(name, error):
            trace = None if isinstance(error, LbError) else error
            log.warning(self._sentence, extra={"subject": name, "error": _text(error)}, exc_info=trace)
        self._texts[name] = _text(error)

    def forget(self, name: str) -> None:
        """Record a success."""
        self._texts.pop(name, None)

    def keep(self, names: set[str]) -> None:
        """Remove all except these."""
        self._texts = {name: text for name, text in self._texts.items() if name in names}


async def for_each(every: Mapping[str, T], work: Callable[[T], Awaitable[None]], failures: Failures) -> None:
    """Call a function for each item with limited concurrency; failures are left for the next time."""
    places = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def one(name: str, each: T) -> None:
        async with places:
            try:
                await work(each)
            except (Outdated, NotLeading):  # the next period handles it
                return
            except Exception as error:  # noqa: BLE001 - a provider may raise anything
                failures.add(name, error)
            else:
                failures.forget(name)

    failures.keep(set(every))
    async with asyncio.TaskGroup() as tasks:
        for name, each in every.items():
            tasks.create_task(one(name, each))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
