"""`python -m bench.cloud.answering`: the backends of all Services: sends "ok" on each connection to port 8080.

The client closes first: the ports that a node uses for its connections to a backend are free again then.
"""

from __future__ import annotations

import asyncio
import contextlib

PORT = 8080
ANSWER = b"ok"
CLOSE_S = 10.0


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a connection, and wait for its end."""
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(ANSWER)
        async with asyncio.timeout(CLOSE_S):
            await reader.read()
    writer.close()


async def main() -> None:
    """Print `ready` when it listens, and never return."""
    server = await asyncio.start_server(answer, "0.0.0.0", PORT, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
