"""--renderer record=FILE: one line of JSON a call, from real objects through a real loop."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.objects.records import Node, Origin
from lbagent.resolve import Options, Resolver
from lbagent.sync.loop import SyncLoop
from lbagent.targets.record import record_renderer
from lbagent.targets.renderer_plane import RendererPlane
from lbagent.targets.renderers import data_planes
from tests.sync.rig import ListSource, endpoints, running, service


def record_plane(path: Path) -> RendererPlane:
    (plane,) = data_planes(Config(renderer=(f"record={path}",)))
    assert isinstance(plane, RendererPlane)
    return plane


NODE = Node("me", Origin("n"), internal_ips=(bytes((10, 0, 0, 1)),))


def with_node_port(number: int, node_port: int) -> Any:
    made = service(number)
    ports = tuple(replace(port, node_port=node_port) for port in made.ports)
    return replace(made, type="NodePort", ports=ports)


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = ListSource()
        self.plane = record_plane(path)
        self.loop = SyncLoop(Resolver(Options("me", keep_existing=True)), [self.source], [self.plane])
        self.source.changed = self.loop.inbox.feed(self.source)
        self._read = 0

    async def change(self) -> list[dict[str, Any]]:
        """Return the calls since the last time."""
        await self.loop.settled()
        lines = self.path.read_text().splitlines()
        new, self._read = lines[self._read :], len(lines)
        return [json.loads(line) for line in new]


async def test_the_calls_of_some_changes_in_their_order(tmp_path: Path) -> None:
    world = World(tmp_path / "calls")
    source = world.source
    await world.plane.open(lambda: None)
    async with running(world.loop):
        source.first_list(NODE, service(1), endpoints(1, 5), service(2))
        resync, flush = await world.change()
        assert (resync["call"], flush) == ("resync", {"call": "flush"})
        assert (resync["node_ips"], [each["id"] for each in resync["services"]]) == (["10.0.0.1"], ["default/s1"])
        assert resync["services"][0]["backends"]["http"][0]["ip"] == "10.1.1.5"
        source.put(endpoints(2, 7))
        add, flush = await world.change()
        assert (add["call"], add["service"]["id"], flush["call"]) == ("add_service", "default/s2", "flush")
        source.put(endpoints(1, 5, 6))
        update, _ = await world.change()
        assert (update["call"], update["others"]) == ("update_service", ["default/s2"])
        assert [len(update[key]["backends"]["http"]) for key in ("old", "service")] == [1, 2]
        source.put(with_node_port(2, 30080))
        (node_ports, _) = await world.change()
        assert node_ports["call"] == "update_node_port_services"
        assert [each["ports"]["http"]["node_port"] for each in node_ports["services"]] == [30080]
        source.put(replace(NODE, internal_ips=(bytes((10, 0, 0, 9)),)))
        (node_ports, _) = await world.change()
        assert (node_ports["call"], node_ports["node_ips"]) == ("update_node_port_services", ["10.0.0.9"])
        source.drop(endpoints(2, 7))
        delete, _ = await world.change()
        assert (delete["call"], delete["service"]["id"], delete["others"]) == (
            "delete_service",
            "default/s2",
            ["default/s1"],
        )
    world.plane.close()
    assert [json.loads(line)["call"] for line in world.path.read_text().splitlines()][-2:] == ["flush", "close"]
    assert world.plane.state.generation > 1
    assert all(svc.id for svc in world.plane.state.services if not svc.wildcard)


async def test_a_write_that_fails_leaves_whole_lines_and_a_resync_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "calls")
    await world.plane.open(lambda: None)
    real = os.write

    def half(fd: int, data: bytes) -> int:
        if not data.startswith(b"{"):
            raise OSError(28, "No space left on device")
        return real(fd, data[:10])

    async with running(world.loop):
        world.source.first_list(service(1), endpoints(1, 5))
        await world.change()
        monkeypatch.setattr(record_renderer.os, "write", half)
        world.source.put(endpoints(1, 5, 6))
        assert await world.change() == [], "nothing of a call that is not whole"
        assert world.loop.runners[0].error == "[Errno 28] No space left on device"
        monkeypatch.setattr(record_renderer.os, "write", real)
        world.source.put(endpoints(1, 5, 6, 7))
        calls: list[dict[str, Any]] = []
        async with asyncio.timeout(10):
            while not calls:
                await asyncio.sleep(0.05)
                calls = await world.change()
        assert [call["call"] for call in calls] == ["resync", "flush"]
        assert len(calls[0]["services"][0]["backends"]["http"]) == 3


async def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record=.*: Is a directory"):
        await record_plane(tmp_path).open(lambda: None)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="No such device or address"):  # no process reads it
        await record_plane(pipe).open(lambda: None)
