"""A client of BIRD's control socket: one connection per command, with limits for the time and the size of an answer.

A line of an answer is `CODE-text`, ` text` (it continues the line before) or, the last one, `CODE text`. Codes: 0 done,
1 a row, 8 refused, 9 syntax error. Source: BIRD 2 doc/reply_codes (behaviour).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from lbagent.announce.bgp.bird_config import quoted
from lbagent.errors import ConfigError, LbError

ANSWER_S = 5.0  # seconds; BIRD is one thread, and answers within milliseconds
MAX_ANSWER_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 10
GREETING = 1  # "BIRD 2.0.12 ready."
ROW, BFD_SESSIONS = 1002, 1020
_LINE = re.compile(r"(?P<code>\d{4})(?P<more>[- ])(?P<text>.*)", re.DOTALL)
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class BirdUnreachable(LbError):
    """No BIRD answers on the socket in time, or the process that answers is not BIRD."""


class BirdHangs(BirdUnreachable):
    """A process listens and does not answer."""


class BirdRefused(ConfigError):
    """BIRD refused a command; the text is BIRD's."""


class Line(Struct, frozen=True):
    """One line of an answer."""

    code: int
    text: str


class Protocol(Struct, frozen=True):
    """One protocol as `show protocols all` prints it. `state` is BGP's (RFC 4271 8.2.2) in small letters, else BIRD's own."""

    name: str
    kind: str
    state: str
    since: str  # time of its last change of state
    last_error: str = ""
    exported: int = 0  # routes, over all channels

    @property
    def is_up(self) -> bool:
        """Whether a BGP session is established."""
        return self.state == "established"


class BirdControl:
    """The socket of one BIRD."""

    def __init__(self, path: str, answer_s: float = ANSWER_S) -> None:
        self.path, self._answer_s = path, answer_s

    async def ask(self, command: str) -> Sequence[Line]:
        """Return the lines of the answer to one command. Raises BirdUnreachable, and BirdRefused for what BIRD refuses."""
        async with self._connected() as (reader, writer):
            greeting = await _read_answer(reader)
            if greeting[-1].code != GREETING or not greeting[-1].text.startswith("BIRD "):
                raise BirdUnreachable(f"{self.path}: the process that answers is not BIRD")
            writer.write(command.encode(errors="surrogateescape") + b"\n")
            answer = await _read_answer(reader)
        if answer[-1].code >= 8000:
            raise BirdRefused(answer[-1].text)
        return answer

    async def configure(self, path: str) -> None:
        """Load a configuration file into BIRD; a refused one changes nothing. Raises BirdRefused, BirdUnreachable."""
        await self.ask(f"configure {quoted(path, 'the path of the configuration')}")

    async def enable(self, name: str) -> None:
        """Restart a protocol that BIRD disabled, by its name. Raises BirdRefused, BirdUnreachable."""
        await self.ask(f"enable {quoted(name, 'the name')}")

    async def shut_down(self) -> None:
        """Make BIRD close its sessions (Cease) and end. Raises BirdUnreachable, BirdRefused."""
        await self.ask("down")

    async def protocols(self) -> dict[str, Protocol]:
        """Return every protocol, by name. Raises BirdUnreachable, BirdRefused."""
        return parse_protocols(await self.ask("show protocols all"))

    async def bfd_sessions(self) -> dict[str, str]:
        """Return the states of BFD sessions (up, down, init, admindown) by address. Raises BirdUnreachable, BirdRefused."""
        try:
            return parse_bfd_sessions(await self.ask("show bfd sessions"))
        except BirdRefused:  # BFD is not configured
            return {}

    def listener_pid(self) -> int:
        """Return the process that listens on the socket, also one that does not answer; 0 for one of another pid namespace.

        From the kernel (SO_PEERCRED, unix(7)), not from a file. Raises BirdUnreachable when none listens, BirdHangs.
        """
        with self._connect() as sock:
            found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(found)[0])

    def _connect(self) -> socket.socket:
        """Return a connection: a unix socket has one at once or never. asyncio takes a full backlog for a connection."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.connect(self.path)
        except BlockingIOError:
            sock.close()
            raise BirdHangs(f"{self.path}: BIRD accepts no more connections") from None
        except OSError as error:
            sock.close()
            raise BirdUnreachable(f"{self.path}: {error.strerror or error}") from None
        return sock

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Yield a connection, for at most ANSWER_S."""
        try:
            async with asyncio.timeout(self._answer_s):
                reader, writer = await asyncio.open_unix_connection(sock=self._connect(), limit=MAX_LINE_BYTES)
                try:
                    yield reader, writer
                finally:
                    writer.close()
        except TimeoutError:
            raise BirdHangs(f"{self.path}: BIRD did not answer within {self._answer_s:g} s") from None
        except OSError as error:
            raise BirdUnreachable(f"{self.path}: {error.strerror or error}") from None


async def _read_answer(reader: asyncio.StreamReader) -> list[Line]:
    """Return the lines up to the one that ends the answer. Raises BirdUnreachable."""
    lines: list[Line] = []
    size = 0
    while True:
        try:
            data = await reader.readline()
        except ValueError:
            raise BirdUnreachable("BIRD answered a line without an end") from None
        size += len(data)
        if not data.endswith(b"\n") or size > MAX_ANSWER_BYTES:
            raise BirdUnreachable(
                "BIRD's answer is truncated" if not data.endswith(b"\n") else "BIRD's answer has no end"
            )
        text = data.decode(errors="replace").rstrip("\r\n")
        if text.startswith("+"):  # lines of its log may come in between
            continue
        match = _LINE.match(text)
        if match is None:
            lines.append(Line(lines[-1].code if lines else 0, text[1:]))
            continue
        lines.append(Line(int(match["code"]), match["text"]))
        if match["more"] == " ":
            return lines


def parse_protocols(lines: Sequence[Line]) -> dict[str, Protocol]:
    """Return the protocols of an answer to `show protocols all`."""
    found: dict[str, Protocol] = {}
    parts: dict[str, list[str]] = {}  # the row and the details of each
    name = ""
    for line in lines:
        if line.code == ROW and len(line.text.split()) >= 4:
            name = line.text.split()[0]
            parts[name] = [line.text]
        elif name:
            parts[name].append(line.text)
    for name, (row, *details) in parts.items():
        _, kind, _, state, *rest = row.split()
        found[name] = _protocol(Protocol(name, kind, state, " ".join(rest[:2])), details)
    return found


def _protocol(row: Protocol, details: Sequence[str]) -> Protocol:
    """Return a row with its details."""
    state, error, exported = row.state, "", 0
    for text in details:
        key, _, value = text.strip().partition(":")
        value = value.strip()
        if key == "BGP state" and value:
            state = value.split()[0].lower()
        elif key == "Last error":
            error = value
        elif key == "Routes":
            exported += _exported(value)
    return Protocol(row.name, row.kind, state, row.since, error, exported)


def _exported(text: str) -> int:
    """Return the number of `2 imported, 3 exported, 0 preferred`."""
    match = re.search(r"(\d+) exported", text)
    return int(match[1]) if match else 0


def parse_bfd_sessions(lines: Sequence[Line]) -> dict[str, str]:
    """Return the states of an answer to `show bfd sessions`, by the text of the peer's address."""
    rows = (line.text.split() for line in lines if line.code == BFD_SESSIONS)
    return {words[0]: words[2].lower() for words in rows if len(words) >= 4 and words[0][0] in "0123456789abcdef"}
