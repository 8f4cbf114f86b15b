"""SIGKILL before each single map write of a plan: new flows find every service whole, and the next agent finishes the work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.resolve import Options, Resolver
from lbagent.sources.folder.source import FolderSource
from lbagent.sync.loop import SyncLoop
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.agent.conftest import Box, endpoints, service
from tests.lab.agent import program
from tests.sync.rig import FixedPaths, running

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow, pytest.mark.early]

ROOT = Path(__file__).resolve().parents[2]
BEFORE = [
    service("web", "10.96.0.10", sessionAffinity="ClientIP"),
    endpoints("web", "10.7.0.5", "10.7.0.6"),
    service("old", "10.96.0.20"),
    endpoints("old", "10.7.0.8"),
]
AFTER = [
    service("web", "10.96.0.10", sessionAffinity="ClientIP"),
    endpoints("web", "10.7.0.6", "10.7.0.7"),
    service("new", "10.96.0.30", type="LoadBalancer", loadBalancerSourceRanges=["10.0.0.0/8"])
    | {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.30"}]}}},
    endpoints("new", "10.7.0.6"),
]


def finish(box: Box) -> None:
    """Do the rest in this process, as the next agent would, without loading programs."""

    async def reconcile() -> None:
        with KernelMaps.open(box.bpffs, create=False) as maps:
            target = BpfTarget.open(maps, FixedPaths(), "demo-node")
            source = FolderSource(str(box.manifests))
            loop = SyncLoop(Resolver(Options("demo-node", keep_existing=True)), [source], [target])
            async with running(loop):
                task = asyncio.create_task(source.run(loop.inbox.feed(source)))
                await asyncio.wait_for(target.ready.wait(), 20)
                task.cancel()
            assert not target.failing

    asyncio.run(reconcile())


def problems(box: Box, *, settled: bool = False) -> list[str]:
    with KernelMaps.open(box.bpffs, create=False) as maps:
        return check(maps, settled=settled)


def lines_of(box: Box, vip: str) -> set[str]:
    with KernelMaps.open(box.bpffs, create=False) as maps:
        return {line for line in dump(maps) if f"ADDR={vip}:" in line and "SLOT=0" in line}


def live(box: Box, life: int) -> bool:
    """Run an agent that dies before its write number `life`; True when it got to the end of its plan alive."""
    arguments = box.make_agent().argv()[len(program()) :]
    argv = box.node.command([sys.executable, "-m", "tests.agent.mortal", str(life), *arguments])
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "ready" in line:
                process.terminate()
                process.stderr.read()
                return True
        assert process.wait() == -9, "it ended by itself"
    return False


def test_killed_before_every_single_write(box: Box) -> None:
    box.write("all.json", *BEFORE)
    box.agent.start()
    box.agent.stop()
    web = lines_of(box, "10.96.0.10")
    deaths = 0
    for life in range(200):
        box.write("all.json", *AFTER)
        done = live(box, life)
        assert problems(box) == [], f"after {life} writes"
        assert {line.split()[1] for line in lines_of(box, "10.96.0.10")} == {line.split()[1] for line in web}  # its IDs
        if done:
            break
        deaths += 1
        finish(box)
        assert problems(box, settled=True) == [], f"after {life} writes and the rest"
        assert lines_of(box, "10.96.0.30")
        assert not lines_of(box, "10.96.0.20")
        box.write("all.json", *BEFORE)
        finish(box)
        assert lines_of(box, "10.96.0.10") == web
    else:
        pytest.fail("it never got to the end")
    assert deaths > 25
