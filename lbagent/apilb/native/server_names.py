"""Resolves the names of servers in threads, every 30 s. On a failure the last addresses stay."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Collection, Mapping

from lbagent.model.address import format_ip, parse_ip
from lbagent.task_failure import log_failure

log = logging.getLogger(__name__)
RESOLVE_INTERVAL_S = 30.0
RESOLVE_RETRY_DELAY_S = 2.0  # for a name that has no address yet
MAX_CONCURRENT_LOOKUPS = 4  # a hanging resolver delays other names, never the loop
MAX_ADDRESSES = 64  # of a name

Lookup = Callable[[str], list[bytes]]


def look_up(host: str) -> list[bytes]:
    """Return the addresses of a name, packed, sorted: resolvers rotate them. Blocks. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    texts = {str(item[4][0]) for item in found if "%" not in str(item[4][0])}
    return sorted({parse_ip(text) for text in texts}, key=lambda each: (len(each), each))[:MAX_ADDRESSES]


class ServerNames:
    """The names in use, with their addresses."""

    def __init__(
        self, on_change: Callable[[], None], known: Mapping[str, tuple[str, ...]], lookup: Lookup = look_up
    ) -> None:
        """`known` are addresses from an earlier agent, as texts."""
        self.addresses: dict[str, tuple[bytes, ...]] = {
            host: tuple(parse_ip(text) for text in texts) for host, texts in known.items()
        }
        self.problems: dict[str, str] = {}  # names whose last look-up failed
        self._on_change, self._lookup = on_change, lookup
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

    def use(self, hosts: Collection[str]) -> None:
        """Follow these names, and no others."""
        for host in self._tasks.keys() - hosts:
            self._tasks.pop(host).cancel()
            self.problems.pop(host, None)
        for host in self.addresses.keys() - hosts:
            del self.addresses[host]
        for host in set(hosts) - self._tasks.keys():
            task = self._tasks[host] = asyncio.create_task(self._follow(host), name=f"resolve {host}")
            task.add_done_callback(log_failure)

    def kept(self) -> dict[str, tuple[str, ...]]:
        """Return the addresses as texts."""
        return {host: tuple(map(format_ip, addresses)) for host, addresses in self.addresses.items()}

    def close(self) -> None:
        """Stop resolving."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _follow(self, host: str) -> None:
        while True:
            async with self._places:
                await self._ask(host)
            await asyncio.sleep(RESOLVE_INTERVAL_S if self.addresses.get(host) else RESOLVE_RETRY_DELAY_S)

    async def _ask(self, host: str) -> None:
        before = self.addresses.get(host, ()), self.problems.get(host, "")
        try:
            found = tuple(await _in_thread(self._lookup, host))
        except OSError as error:
            problem = f"the name {host} is not resolved: {error.strerror or error}"
            if problem != before[1]:
                log.warning("a server's name is not resolved", extra={"host": host, "error": str(error)})
            self.problems[host] = problem
        else:
            self.problems.pop(host, None)
            if found:
                self.addresses[host] = found
        if before != (self.addresses.get(host, ()), self.problems.get(host, "")):
            self._on_change()


async def _in_thread(function: Lookup, host: str) -> list[bytes]:
    """Call it in a thread that does not delay the end of the process, unlike asyncio.to_thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[bytes]] = loop.create_future()

    def give(result: list[bytes] | OSError) -> None:
        if done.done():
            return
        if isinstance(result, OSError):
            done.set_exception(result)
        else:
            done.set_result(result)

    def work() -> None:
        result: list[bytes] | OSError
        try:
            result = function(host)
        except (OSError, ValueError) as error:
            result = error if isinstance(error, OSError) else OSError(0, str(error))
        try:
            loop.call_soon_threadsafe(give, result)
        except RuntimeError:
            return  # the loop has ended in the meantime

    threading.Thread(target=work, name=f"look up {host}", daemon=True).start()
    return await done
