"""Send an HTTP request to a port of this machine."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


async def ask(port: int, path: str = "/", host: str = "127.0.0.1", method: str = "GET") -> Answer:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, text = (await asyncio.wait_for(reader.read(), 10)).decode().partition("\r\n\r\n")
    writer.close()
    first, *lines = head.split("\r\n")
    return Answer(int(first.split()[1]), dict(line.split(": ", 1) for line in lines), text)
