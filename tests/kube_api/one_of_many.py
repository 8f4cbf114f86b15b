"""The part of an agent that finds dead nodes, alone in a process: `python -m tests.kube_api.one_of_many KUBECONFIG NODE KEYFILE`.

Prints a line with its resident memory in KiB when it has loaded everything and has no Lease yet, and `ready` when it observes.
"""

from __future__ import annotations

import asyncio
import gc
import sys

from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeSettings
from lbagent.liveness.live_leases import LiveLeases
from lbagent.liveness.node_liveness import NodeLiveness
from lbagent.process_memory import tune_allocator


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("VmRSS:"))


async def run(kubeconfig: str, node: str, key_file: str) -> None:
    client = KubeClient(KubeSettings(kubeconfig=kubeconfig, node_name=node))
    async with client.get("/api/v1/namespaces/kube-system", {}, silence_s=10.0) as answer:  # loads what any agent has
        await answer.read()

    async def no_key() -> bool:
        return True

    gc.collect()
    print(resident_kib(), flush=True)
    liveness = NodeLiveness(
        node, LiveLeases(client, node), port=10257, key_file=key_file, observers=8,
        addresses=lambda: [bytes((10, 9, 0, 1))], make_key=no_key,
    )  # fmt: skip
    task = asyncio.create_task(liveness.run())
    await liveness.first_decision()
    print("ready", flush=True)
    await task


if __name__ == "__main__":
    tune_allocator()
    asyncio.run(run(*sys.argv[1:4]))
