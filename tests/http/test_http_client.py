"""Requests: what is sent, and which answers are taken."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.http.http_client import HttpAnswer, NoAnswer, Url, exchange, parse_url

BIG = 300 << 10


async def ask(answer: bytes, *, hold: bool = False, within_s: float = 5.0) -> tuple[HttpAnswer, bytes]:
    """Return the accepted answer, and the sent request."""
    sent = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        sent = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if hold:
            await asyncio.sleep(30)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await exchange("POST", Url("127.0.0.1", port, "/x?y"), {"A": "b"}, b"body", within_s=within_s), sent
    finally:
        server.close()


async def test_a_request() -> None:
    answer, sent = await ask(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef")
    assert answer == HttpAnswer(200, b"abc")
    first, host, *lines = sent.decode().split("\r\n")
    assert (first, host.split(":")[:2]) == ("POST /x?y HTTP/1.1", ["Host", " 127.0.0.1"])
    assert {"A: b", "Content-Length: 4", "Connection: close"} <= set(lines)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.0 500 No\nX: y\n\nto the end", b"to the end"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde"),
    ],
)
async def test_other_forms_of_a_body(answer: bytes, body: bytes) -> None:
    assert (await ask(answer))[0] == HttpAnswer(500, body)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "ends too soon"),
        (b"SSH-2.0-x\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "ends too soon"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BIG, "larger than 256 KiB"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * BIG, "larger than 256 KiB"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % BIG, "larger than 256 KiB"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "no length"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 5000 + b"\r\n", "head is too large"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 20000, "limit"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.9/\r\n\r\n", r"it redirects \(302\), which is not followed"),
    ],
)
async def test_what_is_refused(answer: bytes, problem: str) -> None:
    with pytest.raises(NoAnswer, match=problem):
        await ask(answer)


async def test_a_slow_answer() -> None:
    began = time.monotonic()
    with pytest.raises(NoAnswer, match="no answer within 0.2 s"):
        await ask(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", hold=True, within_s=0.2)
    assert time.monotonic() - began < 20


async def test_nothing_listens() -> None:
    with pytest.raises(NoAnswer, match="http://127.0.0.1:1/: "):
        await exchange("GET", Url("127.0.0.1", 1, "/"), {})


def test_urls() -> None:
    assert parse_url("http://192.168.1.1:5000/rootDesc.xml?a=b") == Url("192.168.1.1", 5000, "/rootDesc.xml?a=b")
    assert str(parse_url("HTTP://Router")) == "http://router/"
    for text in (
        "",
        "https://a/",
        "http://",
        "http://a:99999/",
        "http://u:p@a/",
        "http://a/\r\nX: y",
        "http://a/ b",
        "/x",
    ):
        with pytest.raises(ValueError):
            parse_url(text)


@given(st.text(max_size=60) | st.text("htp:/@[]1.% \r\n", max_size=40).map("http://".__add__))
def test_a_url_has_no_line_breaks(text: str) -> None:
    try:
        found = parse_url(text)
    except ValueError:
        return
    assert str(found).isprintable()
    assert " " not in str(found)
