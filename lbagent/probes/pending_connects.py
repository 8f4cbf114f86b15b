"""TCP connections that many checks have begun: one epoll for all, and neither a task nor a timer for each.

A task, its future and its timer cost more than the connection itself: 155 us a check instead of 70, where the answer takes longer
than the call of connect().
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import socket
from collections.abc import Callable

from lbagent.probes.check_time import CheckTimeout
from lbagent.probes.destination import Destination
from lbagent.probes.probe_protocol import Outcome, Result, outcome_of
from lbagent.probes.tcp_connection import connect_half_open, reset

TICK_S = 0.02  # time-outs are multiples of this
CONNECTED = Outcome(Result.OK, "connected")


class Connect:
    """A connection that is being made. `began` is a time of the loop, `deadline` one of the clock of its PendingConnects."""

    __slots__ = ("began", "deadline", "done", "is_over", "owner", "sock", "timeout_s")

    def __init__(
        self,
        sock: socket.socket | None,
        done: Callable[[Connect, Outcome], None],
        owner: PendingConnects,
        *,
        began: float,
        deadline: float,
        timeout_s: float,
    ) -> None:
        self.sock, self.done, self.owner = sock, done, owner
        self.began, self.deadline, self.timeout_s = began, deadline, timeout_s
        self.is_over = False

    def cancel(self) -> None:
        """Close it; `done` is not called."""
        self.owner.end(self)


class PendingConnects:
    """The connections in progress of one event loop. Use it inside the loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` measures time-outs."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._look)
        self._pending: dict[int, Connect] = {}  # by file descriptor
        self._due: dict[int, list[Connect]] = {}  # by number of the tick at which their time may be over
        self._timer: asyncio.TimerHandle | None = None  # of the next tick with any
        self._timer_tick = 0

    def begin(self, server: Destination, timeout_s: float, done: Callable[[Connect, Outcome], None]) -> Connect:
        """Connect; `done` is called later, with what this returns, unless that is cancelled before."""
        sock: socket.socket | None = None
        error: OSError | None
        try:
            sock, error = connect_half_open(server)
        except OSError as failure:  # this node cannot have the socket
            error = failure
        deadline = self._clock() + timeout_s
        new = Connect(sock, done, self, began=self._loop.time(), deadline=deadline, timeout_s=timeout_s)
        if sock is not None:
            self._pending[sock.fileno()] = new
        if error is not None:
            self._loop.call_soon(self._finish, new, outcome_of(error, timeout_s))
            return new
        assert sock is not None
        self._epoll.register(sock, select.EPOLLOUT)
        self._wait(new)
        return new

    def end(self, connect: Connect) -> None:
        """Close a connection that is in progress, if it still is."""
        if self._is_pending(connect):
            self._forget(connect)
        connect.is_over = True

    def _is_pending(self, connect: Connect) -> bool:
        if connect.sock is None:
            return not connect.is_over
        number = connect.sock.fileno()
        return number >= 0 and self._pending.get(number) is connect

    def _forget(self, connect: Connect) -> None:
        if connect.sock is not None:
            del self._pending[connect.sock.fileno()]
            reset(connect.sock)

    def close(self) -> None:
        """Close all."""
        for connect in list(self._pending.values()):
            self.end(connect)
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        if self._timer is not None:
            self._timer.cancel()

    def _finish(self, connect: Connect, outcome: Outcome) -> None:
        if self._is_pending(connect):
            self._forget(connect)
            connect.is_over = True
            connect.done(connect, outcome)

    def _look(self) -> None:
        """Take the connections that are made or refused."""
        for number, events in self._epoll.poll(0):
            connect = self._pending.get(number)
            if connect is None:
                continue  # closed by an earlier one of these
            assert connect.sock is not None
            code = connect.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if events != select.EPOLLOUT else 0
            self._finish(connect, outcome_of(OSError(code, os.strerror(code)), 0.0) if code else CONNECTED)

    def _wait(self, connect: Connect) -> None:
        left = max(0.0, connect.deadline - self._clock())
        tick = math.ceil((self._loop.time() + left) / TICK_S)
        self._due.setdefault(tick, []).append(connect)
        if self._timer is None or tick < self._timer_tick:
            self._set_timer(tick)

    def _set_timer(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        self._timer = self._loop.call_at(tick * TICK_S, self._tick)

    def _tick(self) -> None:
        """End the connections whose time is over; answers that have come count before."""
        self._timer = None
        over = [tick for tick in self._due if tick <= self._timer_tick]
        due = [connect for tick in over for connect in self._due.pop(tick)]
        self._look()
        for connect in due:
            if connect.is_over or connect.sock is None:
                continue
            if self._clock() < connect.deadline:  # the loop did not run for a while
                self._wait(connect)
            else:
                with contextlib.suppress(OSError):
                    self._epoll.unregister(connect.sock)
                self._finish(connect, outcome_of(CheckTimeout(), connect.timeout_s))
        if self._due and self._timer is None:
            self._set_timer(min(self._due))
