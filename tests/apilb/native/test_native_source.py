"""The source of native pools: when it is synced and trusted, its reports, and the stored state of a later one. No network."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from lbagent.apilb.instance import Instance, Mode
from lbagent.apilb.native import native_source, server_names
from lbagent.apilb.native.listeners_found import listener_at
from lbagent.apilb.native.native_source import NativeSource
from lbagent.apilb.native.pool_objects import Bind
from lbagent.errors import ConfigError
from lbagent.kernel.sock_diag import ConnectedSocket
from lbagent.model.address import L3n4Addr, parse_ip
from lbagent.model.backend import BackendState
from lbagent.model.message import Message
from lbagent.objects.records import EndpointSlice, ObjectChange
from lbagent.probes.probe_protocol import Outcome, Result
from lbagent.probes.probe_spec import ProbeSpec

A, B = L3n4Addr.parse("10.0.0.1:6443"), L3n4Addr.parse("10.0.0.2:6443")
CHECK = ProbeSpec(interval=0.02, timeout=0.02, fall=2, rise=2)


class Host:
    """A source's view of a host: files, names, listeners, servers."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.state = tmp_path / "apilb.d", tmp_path / "state"
        self.folder.mkdir()
        self.servers: dict[str, tuple[str, ...]] = {}
        self.down: set[L3n4Addr] = set()
        self.listeners: list[ConnectedSocket] = []
        self.names: dict[str, list[bytes]] = {}
        self.batches: list[Sequence[ObjectChange]] = []
        self.went_down: list[tuple[str, L3n4Addr]] = []

    def write(self, name: str, *servers: str) -> None:
        """Write a file; its pools are set by the test, not by its text."""
        self.servers[name] = servers
        (self.folder / f"{name}.yaml").write_text(" ".join(servers))

    def read(self, path: str) -> tuple[Sequence[Instance], Sequence[Message]]:
        name = Path(path).stem
        servers = Path(path).read_text().split()
        if servers == ["bad"]:
            raise ConfigError("it is bad", file=path, line=1)
        instance = Instance(
            pool="p", name=name, mode=Mode.NATIVE, bind_address="127.0.0.1:7443", servers=tuple(servers),
            host_config_path=path, health_check=CHECK,
        )  # fmt: skip
        return [instance], []

    def lookup(self, host: str) -> list[bytes]:
        if host not in self.names:
            raise OSError(0, "no such name")
        return self.names[host]

    def kept(self) -> bytes:
        """Return the stored state for a later source."""
        path = self.state / "apilb.json"
        return path.read_bytes() if path.exists() else b""

    @contextlib.asynccontextmanager
    async def source(self) -> AsyncIterator[NativeSource]:
        made = NativeSource(
            str(self.folder), str(self.state), self.read, lookup=self.lookup, listeners=lambda: self.listeners
        )
        made.on_down = lambda pool, server: self.went_down.append((pool.instance.name, server))
        task = asyncio.create_task(made.run(self.batches.append))
        try:
            await asyncio.wait_for(made.synced.wait(), 60)
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)

    class FakeProbe:
        def __init__(self, server: L3n4Addr, *_: object) -> None:
            self.server = server

        async def ask(self, **_: object) -> Outcome:
            return Outcome(Result.REFUSED, "refused") if self.server in made.down else Outcome(Result.OK, "fine")

        def close(self) -> None:
            return

    monkeypatch.setattr("lbagent.probes.health_checks.make_probe", FakeProbe)
    monkeypatch.setattr(native_source, "POOL_FILE_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(native_source, "LISTENERS_S", 0.01)
    monkeypatch.setattr(server_names, "RESOLVE_RETRY_DELAY_S", 0.01)
    return made


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 what it waits for has no event
            await asyncio.sleep(0.001)


def states(source: NativeSource) -> dict[str, BackendState | None]:
    """Return the state of each endpoint by address."""
    return {
        str(L3n4Addr(each.address, piece.ports[0].port)): each.state
        for piece in source.snapshot().slices.values()
        for each in piece.endpoints
    }


async def test_the_first_list_is_whole_and_changes_follow(host: Host) -> None:
    host.write("lb", str(A), str(B))
    async with host.source() as source:
        assert [sorted(change.kind for change in batch) for batch in host.batches] == [["EndpointSlice", "Service"]]
        assert source.trusted
        host.write("lb", str(A))
        await until(lambda: states(source).keys() == {str(A)})
        assert [change.kind for change in host.batches[-1]] == ["EndpointSlice"]
        (host.folder / "lb.yaml").unlink()
        await until(lambda: not source.snapshot().services)
        assert {change.new for change in host.batches[-1]} == {None}


async def test_a_server_that_is_down_is_quarantined_and_said_once(host: Host) -> None:
    host.write("lb", str(A), str(B))
    async with host.source() as source:
        host.down = {A}
        await until(lambda: states(source)[str(A)] is BackendState.QUARANTINED)
        assert states(source)[str(B)] is None
        assert host.went_down == [("lb", A)]
        host.write("lb", str(A), str(B), "10.0.0.3:6443")
        await until(lambda: len(states(source)) == 3)
        host.down = set()
        await until(lambda: states(source)[str(A)] is None)
        assert host.went_down == [("lb", A)]


async def test_a_later_source_knows_who_is_down_and_says_so_again(host: Host) -> None:
    host.write("lb", str(A), str(B))
    host.down = {A}
    async with host.source() as source:
        await until(lambda: states(source)[str(A)] is BackendState.QUARANTINED)
        await until(lambda: b'"up":false' in host.kept())
    host.went_down.clear()
    async with host.source() as source:
        slices = [change.new for change in host.batches[-1] if isinstance(change.new, EndpointSlice)]
        assert {each.endpoints[0].state for each in slices} == {BackendState.QUARANTINED}
        await until(lambda: host.went_down)


async def test_a_taken_bind_is_not_served_and_said(host: Host) -> None:
    host.write("lb", str(A))
    host.listeners = [listener("127.0.0.1", 7443)]
    async with host.source() as source:
        assert source.snapshot().services == {}
        (message,) = source.problems()
        assert "a process of this host listens on 127.0.0.1:7443: nothing is diverted from it" in str(message)
        host.listeners = []
        await until(lambda: source.snapshot().services)
        assert source.problems() == []
        host.listeners = [listener("0.0.0.0", 7443)]
        await until(lambda: not source.snapshot().services)
    assert host.went_down == []


async def test_names_become_backends_as_soon_as_they_are_resolved(host: Host) -> None:
    host.write("lb", "api.example:6443")
    async with host.source() as source:
        assert source.snapshot().services  # no server for connections: they are refused
        await until(lambda: any("is not resolved" in str(message) for message in source.problems()))
        host.names["api.example"] = [A.address]
    async with host.source() as source:
        await until(lambda: states(source).keys() == {str(A)})
        del host.names["api.example"]
        await until(lambda: b'"api.example":["10.0.0.1"]' in host.kept())
    async with host.source() as source:
        assert states(source).keys() == {str(A)}  # the resolver fails: known addresses stay


async def test_a_file_that_was_never_good_leaves_its_source_untrusted(host: Host) -> None:
    host.write("lb", "bad")
    async with host.source() as source:
        assert not source.trusted
        assert "it is bad; nothing of it is served" in str(source.problems()[0])
        host.write("lb", str(A))
        await until(lambda: source.trusted)


async def test_a_state_folder_that_cannot_be_written_is_said_and_changes_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_source, "WRITE_RETRY_DELAY_S", 0.05)
    host.state.write_text("a file")
    host.write("lb", str(A))
    async with host.source() as source:
        await until(lambda: any("cannot be written" in str(message) for message in source.problems()))
        assert source.snapshot().services
        await asyncio.sleep(0.1)  # it waits for the next attempt, or for a change
        host.state.unlink()
        await until(lambda: A.ip.encode() in host.kept())
        await until(lambda: not source.problems())


def listener(address: str, port: int, *, v6only: bool = False) -> ConnectedSocket:
    packed = parse_ip(address)
    family = socket.AF_INET6 if len(packed) == 16 else socket.AF_INET
    ident = port.to_bytes(2, "big") + bytes(2) + packed.ljust(16, b"\0") + bytes(28)
    return ConnectedSocket(family, ident, socket.IPPROTO_TCP, v6only)


LOOPBACK, EVERYWHERE, BOTH = "127.0.0.1:7443", "0.0.0.0:7443", "[::]:7443"


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        (listener("127.0.0.1", 7443), {LOOPBACK, EVERYWHERE, BOTH}),
        (listener("0.0.0.0", 7443), {LOOPBACK, EVERYWHERE, BOTH}),
        (listener("::", 7443), {LOOPBACK, EVERYWHERE, BOTH}),
        (listener("::", 7443, v6only=True), {BOTH}),
        (listener("10.0.0.1", 7443), {EVERYWHERE, BOTH}),
        (listener("::1", 7443), {BOTH}),
        (listener("127.0.0.1", 7444), set()),
        (listener("127.0.0.2", 7443), {EVERYWHERE, BOTH}),
    ],
    ids=lambda each: str(each.local) if isinstance(each, ConnectedSocket) else "",
)
def test_which_listeners_have_a_bind(found: ConnectedSocket, taken: set[str]) -> None:
    assert {text for text in (LOOPBACK, EVERYWHERE, BOTH) if listener_at(Bind.parse(text), [found])} == taken
