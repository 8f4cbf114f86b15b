"""Many HTTPS servers in one process with controlled behaviour: `python -m bench.apilb.behaving_servers FOLDER ADDRESS:PORT...`.

It prints `ready`, then reads lines from its standard input: `ADDRESS:PORT BEHAVIOUR` (tests/lab/https_server.py has the words), and answers
`done` when the server behaves so.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.lab.https_server import Server


async def main(folder: str, *places: str) -> None:
    """Serve until the input ends."""
    servers: dict[str, Server] = {}
    for place in places:
        address, _, port = place.rpartition(":")
        servers[place] = Server(place, Path(folder), address, int(port))
        await servers[place].look()
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        server = servers[line[0]]
        server.behaviour = line[1]
        await server.look()
        server.asked.clear()
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
