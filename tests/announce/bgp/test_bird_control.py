"""The control socket, with a server of fixed answers: BIRD's, broken ones, none."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbagent.announce.bgp import bird_control
from lbagent.announce.bgp.bird_control import (
    BirdControl,
    BirdHangs,
    BirdRefused,
    BirdUnreachable,
    Line,
    parse_bfd_sessions,
    parse_protocols,
)
from lbagent.errors import ConfigError

END = b"0000 \n"
GREETING = b"0001 BIRD 2.0.12 ready.\n"
PROTOCOLS = b"""2002-Name       Proto      Table      State  Since         Info
1002-device1    Device     ---        up     2026-11-23 01:49:03.845
1006-
1002-peer_0a010001 BGP        ---        start  2026-11-23 01:49:04.625  Active        Socket: Connection refused
1006-  BGP state:          Active
         Neighbor address: 10.1.0.1
         Last error:       Socket: Connection refused
       Channel ipv4
         State:          DOWN

1002-peer_0a010002 BGP        ---        up     2026-11-23 01:49:05.000  Established
1006-  BGP state:          Established
       Channel ipv4
         Routes:         0 imported, 2 exported, 0 preferred
       Channel ipv6
         Routes:         0 imported, 1 exported, 0 preferred

"""
BFD = b"""1020-bfd1:
     IP address                Interface  State      Since         Interval  Timeout
     10.1.0.1                  e0         Up         2026-11-23 01:49:03.933    0.300    1.500
     fd01::1                   e0         Down       2026-11-23 01:49:03.933    0.300    0.000
"""


@asynccontextmanager
async def answering(path: Path, *answers: bytes, greeting: bytes = GREETING) -> AsyncIterator[list[bytes]]:
    """Serve one answer per connection; yield the requests."""
    asked: list[bytes] = []
    waiting = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        if line := await reader.readline():
            asked.append(line)
            writer.write(waiting.pop(0))
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield asked


async def test_protocols_and_bfd_sessions(tmp_path: Path) -> None:
    control = BirdControl(str(tmp_path / "s"))
    async with answering(
        tmp_path / "s", PROTOCOLS + END, BFD + END, b"9001 There is no BFD protocol running\n"
    ) as asked:
        found = await control.protocols()
        assert await control.bfd_sessions() == {"10.1.0.1": "up", "fd01::1": "down"}
        assert await control.bfd_sessions() == {}
    assert asked[0] == b"show protocols all\n"
    one, two = found["peer_0a010001"], found["peer_0a010002"]
    assert (one.kind, one.state, one.last_error, one.exported) == ("BGP", "active", "Socket: Connection refused", 0)
    assert (two.state, two.is_up, two.exported, two.last_error) == ("established", True, 3, "")
    assert two.since == "2026-11-23 01:49:05.000"
    assert found["device1"].state == "up"


async def test_configure_names_the_file_and_tells_what_is_refused(tmp_path: Path) -> None:
    control = BirdControl(str(tmp_path / "s"))
    done, refused = (
        b"0002-Reading configuration from /x\n0003 Reconfigured\n",
        b"0002-Reading\n8002 /x:3:1 syntax error\n",
    )
    async with answering(tmp_path / "s", done, b"0004 Reconfiguration in progress\n", refused) as asked:
        await control.configure("/x")
        await control.configure("/x")
        with pytest.raises(BirdRefused, match="/x:3:1 syntax error"):
            await control.configure("/x")
    assert asked[0] == b'configure "/x"\n'
    with pytest.raises(ConfigError):
        await control.configure('/x" down')


@pytest.mark.parametrize(
    ("greeting", "answer", "words"),
    [
        (b"SSH-2.0\n0001 x\n", b"", "is not BIRD"),
        (b"0013 BIRD 2.0.12 ready.\n", b"", "is not BIRD"),
        (GREETING, b"1002-half", "is truncated"),
        (GREETING, b"1002-" + b"x" * 200_000, "without an end"),
        (GREETING, b"1002-row\n" * 20, "has no end"),
        (GREETING, b"\xff\xfe\n", "is truncated"),
    ],
)
async def test_what_is_no_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greeting: bytes, answer: bytes, words: str
) -> None:
    monkeypatch.setattr(bird_control, "MAX_ANSWER_BYTES", 100)
    async with answering(tmp_path / "s", answer, greeting=greeting):
        with pytest.raises(BirdUnreachable, match=words):
            await BirdControl(str(tmp_path / "s")).ask("show status")


async def test_one_that_is_not_there_or_hangs(tmp_path: Path) -> None:
    path = tmp_path / "s"
    control = BirdControl(str(path), answer_s=0.2)
    with pytest.raises(BirdUnreachable, match="No such file"):
        await control.ask("show status")
    with pytest.raises(BirdUnreachable):
        control.listener_pid()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        assert control.listener_pid() == os.getpid()
        with pytest.raises(BirdHangs, match=r"not answer within 0\.2 s"):
            await control.ask("show status")
        with pytest.raises(BirdHangs, match="accepts no more connections"):
            for _ in range(4):
                control.listener_pid()
    with pytest.raises(BirdUnreachable, match="refused"):
        control.listener_pid()


def test_rows_that_are_cut_short_are_left_out() -> None:
    assert parse_protocols([Line(1002, "only"), Line(1002, ""), Line(1006, "BGP state:"), Line(0, "")]) == {}
    assert parse_bfd_sessions([Line(1020, ""), Line(1020, "10.1.0.1"), Line(1002, "10.1.0.1 e0 Up x")]) == {}
