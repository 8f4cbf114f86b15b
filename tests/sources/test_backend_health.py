"""Health checks of backends as a source, against sockets of this host; what is down survives a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.objects.decode.decode_health_check import parse_health_check
from lbagent.objects.records import ObjectChange
from lbagent.probes.backend_check import CheckedService
from lbagent.sources.backend_health import FILE, BackendHealthSource

FAST = "interval=100ms timeout=100ms rise=2 fall=2"
WEB = "default/web"


def listening(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    return socket.create_server((host, port))


def backend(host: str, port: int, protocol: L4Type = L4Type.TCP) -> L3n4Addr:
    return L3n4Addr(socket.inet_aton(host), port, protocol)


def checked(text: str, *backends: L3n4Addr) -> CheckedService:
    return CheckedService(parse_health_check(text), tuple((each, None) for each in backends))


class Running:
    """A source, and what it has reported."""

    def __init__(self, folder: Path) -> None:
        self.source = BackendHealthSource(str(folder))
        self.reports: list[Sequence[ObjectChange]] = []

    @property
    def failed(self) -> Mapping[str, set[L3n4Addr]]:
        return {key: set(each.backends) for key, each in self.source.snapshot().failed_checks.items()}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    made = Running(folder)
    task = asyncio.create_task(made.source.run(made.reports.append))
    await asyncio.wait_for(made.source.synced.wait(), 5)
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 what it waits for has no event
            await asyncio.sleep(0.005)


async def test_a_backend_that_refuses_is_reported_and_returns(tmp_path: Path) -> None:
    with listening() as good, listening("127.0.0.2") as closing:
        one, two = backend("127.0.0.1", good.getsockname()[1]), backend("127.0.0.2", closing.getsockname()[1])
        async with running(tmp_path) as made:
            assert made.reports == [[]]
            made.source.check({WEB: checked(f"tcp {FAST}", one, two)})
            await until(lambda: all(each.is_known for each in made.source.results()))
            assert made.failed == {}
            assert {each.type for each in made.source.results()} == {"tcp"}
            closing.close()
            await until(lambda: made.failed == {WEB: {two}})
            (change,) = made.reports[-1]
            assert (change.kind, change.key, change.old) == ("FailedChecks", WEB, None)
            errors = {each.backend: each.health.error for each in made.source.results()}
            assert errors == {one: "", two: "connection refused"}
            with listening("127.0.0.2", two.port):
                await until(lambda: made.failed == {})
            assert made.reports[-1][0].new is None


async def test_port_and_protocol_of_the_check(tmp_path: Path) -> None:
    """The server of the check is another one than that of the flows."""
    with listening() as sock:
        port = sock.getsockname()[1]
        dns = backend("127.0.0.1", 9, L4Type.UDP)
        async with running(tmp_path) as made:
            made.source.check({WEB: checked(f"tcp:{port} {FAST}", dns)})
            await until(lambda: all(each.is_known for each in made.source.results()))
            assert [each.health.up for each in made.source.results()] == [True]
            sock.close()
            await until(lambda: made.failed == {WEB: {dns}})


async def test_services_may_check_one_backend_in_different_ways(tmp_path: Path) -> None:
    with listening() as sock:
        address = backend("127.0.0.1", sock.getsockname()[1])
        async with running(tmp_path) as made:
            services = {WEB: checked(f"tcp {FAST}", address), "default/api": checked(f"http {FAST}", address)}
            made.source.check(services)
            await until(lambda: made.failed == {"default/api": {address}})  # no process answers
            made.source.check({WEB: services[WEB]})
            await until(lambda: made.failed == {})


async def test_what_is_down_is_down_after_a_restart_until_it_answers(tmp_path: Path) -> None:
    with listening() as sock:
        address = backend("127.0.0.1", sock.getsockname()[1])
    service = {WEB: checked(f"tcp {FAST}", address)}
    file = tmp_path / "state" / FILE
    async with running(tmp_path / "state") as made:
        made.source.check(service)
        await until(lambda: made.failed)
        since = [each.health.since for each in made.source.results()]
        await until(file.exists)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with running(tmp_path / "state") as made:
        assert [change.new.backends for change in made.reports[0]] == [{address}]  # type: ignore[union-attr]
        made.source.check(service)
        await asyncio.sleep(0)
        assert [(each.health.up, each.health.since) for each in made.source.results()] == [(False, *since)]
        with listening("127.0.0.1", address.port):
            await until(lambda: made.failed == {})
            await until(lambda: json.loads(file.read_text())["down"] == [])


async def test_another_check_of_the_same_backend_starts_anew(tmp_path: Path) -> None:
    with listening() as sock:
        address = backend("127.0.0.1", sock.getsockname()[1])
    async with running(tmp_path) as made:
        made.source.check({WEB: checked(f"tcp {FAST}", address)})
        await until(lambda: made.failed)
        made.source.check({WEB: checked("tcp interval=1h", address)})
        await until(lambda: made.failed == {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"down": [{"service": "a/b", "backend": "x"}]}'])
async def test_a_file_that_cannot_be_read_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    async with running(tmp_path) as made:
        assert made.reports == [[]]


async def test_a_folder_that_cannot_be_written_stops_no_check(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    with listening() as sock:
        address = backend("127.0.0.1", sock.getsockname()[1])
    async with running(tmp_path / "state") as made:
        made.source.check({WEB: checked(f"tcp {FAST}", address)})
        await until(lambda: made.failed == {WEB: {address}})
        with listening("127.0.0.1", address.port):
            await until(lambda: made.failed == {})


async def test_http_leaves_no_connection_open(tmp_path: Path) -> None:
    """A server of HTTP/1.1 would keep it."""
    closed = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server, running(tmp_path) as made:
        address = backend("127.0.0.1", server.sockets[0].getsockname()[1])
        made.source.check({WEB: checked("http interval=1s", address)})
        await asyncio.wait_for(closed.wait(), 20)
        await until(lambda: all(each.is_known for each in made.source.results()))
        assert made.failed == {}
