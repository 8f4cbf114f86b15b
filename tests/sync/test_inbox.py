"""Reports are kept until a pass takes them; a waiter resumes after a pass has taken the earlier reports."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.sync.inbox import Inbox
from tests.sync.rig import ListSource, endpoints, service


async def settles(inbox: Inbox) -> bool:
    """Return whether nothing is left to wait for."""
    try:
        async with asyncio.timeout(0.02):
            await inbox.settled()
    except TimeoutError:
        return False
    return True


async def test_it_is_settled_when_each_request_was_answered() -> None:
    inbox = Inbox([ListSource("one")])
    assert await settles(inbox), "nothing was requested"
    inbox.request()
    assert not await settles(inbox)
    first, _ = inbox.take()
    inbox.request()
    await inbox.finish(first)
    assert not await settles(inbox), "the second request came after the pass had begun"
    second, _ = inbox.take()
    await inbox.finish(second)
    assert await settles(inbox)


async def test_changes_are_taken_once_and_objects_are_counted() -> None:
    one, two = ListSource("one"), ListSource("two")
    inbox = Inbox([one, two])
    one.changed, two.changed = inbox.feed(one), inbox.feed(two)
    one.put(service(1), endpoints(1, 1))
    two.put(service(2))
    two.put()
    counts = {name: (found.objects, found.generation) for name, found in inbox.counts.items()}
    assert counts == {"one": (2, 1), "two": (1, 1)}, "a report without changes is none"
    await asyncio.wait_for(inbox.requests(), 10)
    number, changes = inbox.take()
    assert (number, len(changes)) == (3, 3)
    assert inbox.take() == (3, [])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(inbox.requests(), 0.02)
    one.put(endpoints(1, 1, 2))
    one.drop(service(1))
    assert (inbox.counts["one"].objects, inbox.counts["one"].generation) == (1, 3)
    assert len(inbox.take()[1]) == 2
