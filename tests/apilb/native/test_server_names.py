"""Names of servers: resolved repeatedly, off the loop; a failure keeps the last addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from lbagent.apilb.native import server_names
from lbagent.apilb.native.server_names import ServerNames, look_up
from lbagent.model.address import parse_ip

ONE, TWO = parse_ip("10.0.0.1"), parse_ip("10.0.0.2")


class Resolver:
    """Returns the test's answers, in the calling thread."""

    def __init__(self) -> None:
        self.answers: dict[str, list[bytes] | OSError] = {}
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.hang = threading.Event()
        self.hanging = ""

    def __call__(self, host: str) -> list[bytes]:
        self.asked.append(host)
        self.threads.add(threading.get_ident())
        if host == self.hanging:
            self.hang.wait(60)
        answer = self.answers[host]
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    monkeypatch.setattr(server_names, "RESOLVE_INTERVAL_S", 0.02)
    monkeypatch.setattr(server_names, "RESOLVE_RETRY_DELAY_S", 0.01)
    return Resolver()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 what it waits for has no event
            await asyncio.sleep(0.001)


async def test_a_name_follows_its_addresses_and_keeps_them_over_failures(resolver: Resolver) -> None:
    changes: list[None] = []
    names = ServerNames(lambda: changes.append(None), {}, resolver)
    resolver.answers["api"] = [ONE]
    names.use({"api"})
    await until(lambda: names.addresses.get("api") == (ONE,))
    resolver.answers["api"] = [ONE, TWO]
    await until(lambda: names.addresses["api"] == (ONE, TWO))
    resolver.answers["api"] = OSError(0, "Temporary failure in name resolution")
    await until(lambda: names.problems)
    assert names.addresses["api"] == (ONE, TWO)
    assert names.problems == {"api": "the name api is not resolved: Temporary failure in name resolution"}
    resolver.answers["api"] = []  # no failure, and no address: nothing to serve
    await until(lambda: not names.problems)
    assert names.addresses["api"] == (ONE, TWO)
    assert len(changes) == 4
    names.close()
    assert threading.get_ident() not in resolver.threads


async def test_a_name_that_is_not_used_is_not_asked_for(resolver: Resolver) -> None:
    resolver.answers = {"one": [ONE], "two": [TWO]}
    names = ServerNames(lambda: None, {"one": ("10.0.0.9",), "old": ("10.0.0.8",)}, resolver)
    names.use({"one"})
    assert names.kept() == {"one": ("10.0.0.9",)}
    await until(lambda: names.addresses["one"] == (ONE,))
    names.use({"two"})
    await until(lambda: names.addresses.get("two") == (TWO,))
    assert names.kept() == {"two": ("10.0.0.2",)}
    resolver.asked.clear()
    await until(lambda: resolver.asked.count("two") > 2)
    assert "one" not in resolver.asked
    names.close()


async def test_a_resolver_that_hangs_holds_up_no_other_name(resolver: Resolver) -> None:
    resolver.answers = {"slow": [ONE], "quick": [TWO]}
    resolver.hanging = "slow"
    names = ServerNames(lambda: None, {}, resolver)
    names.use({"slow", "quick"})
    await until(lambda: resolver.asked.count("quick") > 3)
    assert "slow" not in names.addresses
    resolver.hang.set()
    await until(lambda: names.addresses.get("slow") == (ONE,))
    names.close()


def test_the_host_s_own_resolver_is_asked() -> None:
    assert parse_ip("127.0.0.1") in look_up("localhost")
    with pytest.raises(OSError):
        look_up("name.invalid")
