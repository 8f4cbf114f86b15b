"""A process with a BgpSpeaker, like the agent's: a JSON line on stdin is a command, a line on stdout its answer."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import msgspec

from lbagent.announce.bgp.speaker import BgpSpeaker
from lbagent.model.address import parse_ip
from lbagent.net.netlink import NetworkWatcher
from lbagent.pools.read_pools import read_pools


async def serve(state_dir: str, pools: str) -> None:
    watcher = NetworkWatcher()
    network = await watcher.start()

    def follow(seen: Any) -> None:
        nonlocal network
        network = seen

    speaker = BgpSpeaker(state_dir, "node-1", lambda: network)
    tasks = [asyncio.create_task(watcher.run(follow)), asyncio.create_task(speaker.run())]
    await speaker.use_settings(read_pools(pools).bgp, {"rack": "a"})
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        words = json.loads(line)
        answer: Any = None
        match words.pop("do"):
            case "routes":
                await speaker.set_routes([parse_ip(text) for text in words["addresses"]])
                answer = speaker.problems()
            case "peers":
                answer = msgspec.to_builtins(await speaker.peers())
            case "problems":
                answer = speaker.problems()
            case "up":
                answer = speaker.sessions_up
            case "settings":
                settings = read_pools(pools).bgp
                if settings and words:
                    settings = msgspec.structs.replace(settings, **words)
                await speaker.use_settings(settings, {"rack": "a"})
                answer = speaker.problems()
            case "stop":
                await speaker.stop(**words)
        print(json.dumps(answer), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve(*sys.argv[1:]))
