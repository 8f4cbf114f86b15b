"""A client like a kubelet: open watches and continuous requests, by HTTPS through one address. A separate process.

It writes a line of JSON for each event; figures.py reads them. Times are of the machine's monotonic clock.

- `{"what": "answer", "asked": ..., "began": ..., "at": ..., "server": "a"}`: a request was answered; `began`: this attempt, on a new connection
- `{"what": "failed", "began": ..., "at": ..., "error": "..."}`: an attempt failed; the next one follows at once
- `{"what": "open", "watch": 3, "at": ..., "server": "a", "silent_s": 0.1}`: a watch has its first line, so long after the last line of
  the connection before (0: there was none)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import time
from pathlib import Path

TIMEOUT_S = 5.0  # for an attempt, and until a watch has its first line
PAUSE_S, AGAIN_S = 0.02, 0.05
ERRORS = (OSError, EOFError)  # also of TLS and of time-outs
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Kubelet:
    """Its watches and its requests."""

    def __init__(self, address: str, port: int, log: Path) -> None:
        self._address, self._port = address, port
        self._log = log.open("a", buffering=1)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    async def run(self, watches: int, workers: int) -> None:
        """Do both until killed."""
        async with asyncio.TaskGroup() as group:
            for number in range(watches):
                group.create_task(self._watch(number))
            for _ in range(workers):
                group.create_task(self._request())

    def _write(self, what: str, **fields: float | str) -> None:
        self._log.write(json.dumps({"what": what, "at": time.monotonic(), **fields}) + "\n")

    async def _get(self, path: str) -> tuple[Connection, str]:
        """Send a request on a new connection; return it and the first line of the body."""
        reader, writer = await asyncio.open_connection(self._address, self._port, ssl=self._context)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: kube-apiserver\r\nConnection: close\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            return (reader, writer), (await reader.readuntil(b"\n")).decode().split()[0]
        except BaseException:
            writer.transport.abort()
            raise

    async def _request(self) -> None:
        asked = 0.0
        while True:
            began = time.monotonic()
            asked = asked or began
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    (_, writer), server = await self._get("/api/v1/nodes")
                writer.transport.abort()
            except ERRORS as error:
                self._write("failed", began=began, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(AGAIN_S)
            else:
                self._write("answer", asked=asked, began=began, server=server)
                asked = 0.0
                await asyncio.sleep(PAUSE_S)

    async def _watch(self, number: int) -> None:
        last_line = 0.0
        while True:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    (reader, writer), server = await self._get("/watch")
                silent_s = time.monotonic() - last_line if last_line else 0.0
                self._write("open", watch=number, server=server, silent_s=silent_s)
                last_line = time.monotonic()
                try:
                    while await reader.readuntil(b"\n"):
                        last_line = time.monotonic()
                finally:
                    writer.transport.abort()
            except ERRORS:
                await asyncio.sleep(AGAIN_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--watches", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--cgroup", type=Path, help="where it lives")
    options = parser.parse_args()
    if options.cgroup:
        (options.cgroup / "cgroup.procs").write_text(str(os.getpid()))
    asyncio.run(Kubelet(options.address, options.port, options.log).run(options.watches, options.workers))
