"""SharedCalls: the calls of all renderers of an agent. Each renderer gets the same calls in the same order, at its own pace.

The calls that follow one change are a burst. A burst is kept until each renderer has made its calls. One that is further behind
than MAX_BURSTS, or that failed, begins again with a resync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import Struct

from lbagent.model.state import State
from lbagent.render.renderer_types import ResyncEventData
from lbagent.render.service_calls import NOWHERE, Call, Flush, Resync, ServiceCalls, Surroundings, View
from lbagent.sync.target_protocol import Desired, ObjectFacts

MAX_BURSTS = 100  # that a renderer may be behind: each holds a tuple of all Services
_FLUSH = Flush()


class Burst(Struct, frozen=True):
    """The calls up to a flush, and the number of what they make true."""

    number: int
    calls: Sequence[Call]


class BurstLog:
    """The last bursts of one view."""

    def __init__(self, view: View) -> None:
        self.number = 0  # of the last burst; 0: there was no State yet
        self._calls = ServiceCalls(view)
        self._readers: list[BurstReader] = []
        self._bursts: deque[Burst] = deque(maxlen=MAX_BURSTS)
        self._last: tuple[State, ObjectFacts, Surroundings] | None = None

    def update(self, state: State, facts: ObjectFacts, around: Surroundings) -> None:
        """Take a State; it makes a burst where it changes anything for a renderer."""
        last = self._last
        if last is not None and last[0] is state and last[1] is facts and last[2] is around:
            return
        self._last = (state, facts, around)
        calls = self._calls.to(state, facts, around)
        if not self.number:
            self.number = 1
        elif calls:
            self.number += 1
            self._bursts.append(Burst(self.number, (*calls, _FLUSH)))

    def reader(self) -> BurstReader:
        """Return what follows the log for one renderer."""
        made = BurstReader(self)
        self._readers.append(made)
        return made

    def after(self, number: int) -> Sequence[Burst]:
        """Return the bursts that follow a number; a resync where they are not all there, or `number` is 0."""
        first = self._bursts[0].number if self._bursts else self.number + 1
        if number and number + 1 >= first:
            return [*islice(self._bursts, number + 1 - first, None)]
        return [Burst(self.number, (Resync(self.snapshot()), _FLUSH))]

    def drop_made(self) -> None:
        """Forget the bursts that no renderer needs any more."""
        needed = min((reader.number for reader in self._readers if reader.number), default=self.number)
        while self._bursts and self._bursts[0].number <= needed:
            self._bursts.popleft()

    def snapshot(self) -> ResyncEventData:
        """Return everything that a renderer makes true now."""
        return self._calls.snapshot()


class BurstReader:
    """How far one renderer is."""

    def __init__(self, log: BurstLog) -> None:
        self.log = log
        self.number = 0  # of the burst in force; 0: not known, a resync is next

    def next_bursts(self) -> Sequence[Burst]:
        """Return the bursts whose calls are to be made."""
        return self.log.after(self.number)

    def made(self, burst: Burst) -> None:
        """Note that all calls of a burst were made."""
        self.number = burst.number
        self.log.drop_made()

    def lose(self) -> None:
        """Note that it is not known what is in force."""
        self.number = 0
        self.log.drop_made()


class SharedCalls:
    """A log of bursts for each view, and the surroundings of the node. `on_surroundings` is called after they changed."""

    def __init__(self) -> None:
        self._logs: dict[View, BurstLog] = {}
        self._around = NOWHERE
        self._followers: list[Callable[[], None]] = []

    def log(self, view: View) -> BurstLog:
        """Return the log of a view."""
        return self._logs.setdefault(view, BurstLog(view))

    def update(self, log: BurstLog, desired: Desired) -> None:
        """Bring a log to a State."""
        log.update(desired.state, desired.facts or _NO_FACTS, self._around)

    def follow(self, on_surroundings: Callable[[], None]) -> None:
        """Call a function each time when the surroundings changed."""
        self._followers.append(on_surroundings)

    def set_surroundings(self, around: Surroundings) -> None:
        """Take new surroundings."""
        self._around = around
        for follower in self._followers:
            follower()


_NO_FACTS = ObjectFacts()
