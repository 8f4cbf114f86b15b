"""The echo over real sockets: which datagrams are answered, and which answers count."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

from lbagent.liveness import echo_server
from lbagent.liveness.echo_packet import ANSWER, QUESTION, STEP_S, Echo, read_echo, step_at, write_echo
from lbagent.liveness.echo_server import EchoServer
from lbagent.liveness.node_asker import NodeAsker
from lbagent.liveness.observed_nodes import Attempt
from lbagent.model.address import parse_ip
from tests.lab.netns import Stopwatch
from tests.lab.ports import own_port

KEY = b"0123456789abcdef0123456789abcdef"
LOOPBACKS = ("127.0.0.1", "::1")


@contextlib.asynccontextmanager
async def serving(key: bytes = KEY, node: str = "node-b", at: float | None = None) -> AsyncIterator[int]:
    port = own_port()
    server = EchoServer(node, port, lambda: key, (lambda: at) if at is not None else time.time)
    task = asyncio.create_task(server.run())
    await asyncio.sleep(0.05)
    try:
        yield port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answers_to(port: int, *questions: bytes, host: str = "127.0.0.1", least: int = 0) -> list[bytes]:
    """Send these from one socket; return what comes back: so many, on a busy machine later, and what follows within 0.3 s."""
    found = []
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        for each in questions:
            sock.sendto(each, (host, port))
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(30 if len(found) < least else 0.3):
                    found.append(await asyncio.get_running_loop().sock_recv(sock, 2048))
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the server has no event of it
            await asyncio.sleep(0.01)


def question(node: str = "node-b", key: bytes = KEY, at: float | None = None, nonce: bytes = bytes(16)) -> bytes:
    return write_echo(Echo(QUESTION, step_at(time.time() if at is None else at), nonce, node), key)


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_a_question_with_the_key_is_answered(host: str) -> None:
    async with serving() as port:
        asked = question(nonce=bytes(range(16)))
        (answer,) = await answers_to(port, asked, host=host, least=1)
    assert len(answer) <= len(asked)
    echo = read_echo(answer, KEY)
    assert echo is not None
    assert (echo.kind, echo.nonce, echo.node) == (ANSWER, bytes(range(16)), "node-b")


async def test_nothing_else_is_answered() -> None:
    now = time.time()
    answer = write_echo(Echo(ANSWER, step_at(now), bytes(16), "node-b"), KEY)
    async with serving() as port:
        wrong = [
            b"", b"lbn1", bytes(500), question()[:-1], question() + b"\0", question(key=b"another"), question("node-c"),
            question(at=now - 3 * STEP_S), question(at=now + 3 * STEP_S), answer,
        ]  # fmt: skip
        assert await answers_to(port, *wrong) == []
        assert len(await answers_to(port, question(), least=1)) == 1
    async with serving(key=b"") as port:
        assert await answers_to(port, question(), question(key=b"")) == []


async def test_a_flood_is_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent does other work meanwhile."""
    monkeypatch.setattr(echo_server, "MAX_READS", 10)
    async with serving() as port:
        began = Stopwatch()
        flood = [bytes(100)] * 60
        assert len(await answers_to(port, *flood, question())) == 0, "it comes later"
        assert began.s < 2


async def test_a_port_that_is_taken_is_a_fault_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo_server, "BIND_RETRY_DELAY_S", 0.05)
    port = own_port()
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as taken:
        taken.bind(("", port))
        server = EchoServer("node-b", port, lambda: KEY)
        task = asyncio.create_task(server.run())
        await until(lambda: str(port) in server.failure)
    await until(lambda: server.failure == "")
    assert len(await answers_to(port, question(), least=1)) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# --- what the asker makes of answers ---


class Peer:
    """A socket in place of a node's agent."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.settimeout(2)
        self.port = int(self.sock.getsockname()[1])

    def receive(self) -> tuple[Echo, tuple[str, int]]:
        data, peer = self.sock.recvfrom(2048)
        echo = read_echo(data, KEY)
        assert echo is not None
        return echo, peer


@pytest.fixture
def peer() -> Peer:
    return Peer()


class Asked:
    """An asker that has sent one question to a peer."""

    def __init__(self, peer: Peer) -> None:
        self.now = 50.0
        self.answered: list[str] = []
        self.asker = NodeAsker(peer.port, lambda: KEY, self._answered, lambda: self.now)
        self.asker.ask("node-b", parse_ip("127.0.0.1"))
        self.echo, self.back = peer.receive()
        self.peer = peer

    def _answered(self, node: str, attempt: Attempt) -> None:
        assert attempt is Attempt.ECHO
        self.answered.append(node)

    def take(self, *answers: bytes) -> list[str]:
        for each in answers:
            self.peer.sock.sendto(each, self.back)
        time.sleep(0.02)
        self.asker.read(["node-b", "node-c"])
        return self.answered


def test_an_answer_counts_once(peer: Peer) -> None:
    one = Asked(peer)
    answer = write_echo(Echo(ANSWER, one.echo.step, one.echo.nonce, "node-b"), KEY)
    assert one.take(answer, answer) == ["node-b"]
    one.asker.ask("node-b", parse_ip("127.0.0.1"))
    assert one.take(answer) == ["node-b"], "an old answer, sent again"


def test_what_is_forged_counts_for_nothing(peer: Peer) -> None:
    one = Asked(peer)
    step, nonce = one.echo.step, one.echo.nonce
    forged = [
        write_echo(Echo(ANSWER, step, nonce, "node-b"), b"another key"),
        write_echo(Echo(ANSWER, step, bytes(16), "node-b"), KEY),  # recorded for another question
        write_echo(Echo(ANSWER, step, nonce, "node-c"), KEY),
        write_echo(Echo(QUESTION, step, nonce, "node-b"), KEY),  # the question itself, sent back
        b"", b"lbn1", bytes(300),
    ]  # fmt: skip
    assert one.take(*forged) == []
    assert one.take(write_echo(Echo(ANSWER, step, nonce, "node-b"), KEY)) == ["node-b"]


def test_an_answer_that_comes_too_late_counts_for_nothing(peer: Peer) -> None:
    one = Asked(peer)
    one.now += 2.1
    assert one.take(write_echo(Echo(ANSWER, one.echo.step, one.echo.nonce, "node-b"), KEY)) == []


def test_without_a_key_nothing_is_sent(peer: Peer) -> None:
    asker = NodeAsker(peer.port, lambda: b"", lambda *_: None)
    asker.ask("node-b", parse_ip("127.0.0.1"))
    peer.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        peer.sock.recvfrom(2048)
    asker.read(["node-b"])


@pytest.mark.root
@pytest.mark.parametrize("host", LOOPBACKS)
@pytest.mark.parametrize("attempt", [Attempt.ICMP, Attempt.TCP])
async def test_a_kernel_answers_by_itself(host: str, attempt: Attempt) -> None:
    """No process listens at the port: the RST is the answer."""
    answered: list[tuple[str, Attempt]] = []
    asker = NodeAsker(own_port(), lambda: b"", lambda *answer: answered.append(answer))
    assert asker.ask_kernel("node-b", parse_ip(host), attempt)
    assert not asker.ask_kernel("node-b", parse_ip(host), attempt), "one at a time"
    async with asyncio.timeout(5):
        # the next one begins when the first has ended
        while not answered or not asker.ask_kernel("node-b", parse_ip(host), attempt):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    assert answered[0] == ("node-b", attempt)
    asker.close()
