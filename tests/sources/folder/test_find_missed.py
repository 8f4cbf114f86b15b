"""The folder is read again: what the source did not notice is missed."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from lbagent.errors import TimedOut
from lbagent.objects.source import Missed
from lbagent.sources.folder import source as module
from lbagent.sources.folder.source import FolderSource
from tests.sources.folder.test_source import Follower, service


@pytest.fixture(params=[True, False], ids=["inotify", "polling"])
def follow(request, monkeypatch):
    monkeypatch.setattr(module, "CATCH_UP_S", 0.2)

    @asynccontextmanager
    async def following(path):
        source = FolderSource(str(path), use_inotify=request.param, poll_s=0.05, rescan_s=0.2)
        follower = Follower(source)
        task = asyncio.create_task(source.run(follower))
        try:
            await asyncio.wait_for(source.synced.wait(), 5)
            yield follower
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return following


def write_unseen(path, text: str) -> None:
    """Change bytes and leave size and time: as a file system whose clock stands, or a map of the file, does it."""
    before = path.stat()
    assert len(text.encode()) == before.st_size
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, text.encode(), 0)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.close(descriptor)


async def test_nothing_is_missed(follow, tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(service("a"))
    (tmp_path / "bad.yaml").write_text("kind: [")
    async with follow(tmp_path) as one:
        await one.has("a")
        calls = one.calls
        assert await one.source.find_missed() == Missed()
        (tmp_path / "a.yaml").write_text("kind: [")  # its last good objects stay
        await one.reports("a.yaml")
        (tmp_path / "b.yaml").write_text(service("b"))
        assert await one.source.find_missed() == Missed()  # it is read meanwhile
        assert one.names == ["a", "b"]
        assert one.calls > calls


async def test_a_change_that_no_event_and_no_time_shows(follow, tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(service("a"))
    async with follow(tmp_path) as one:
        await one.has("a")
        if watch := one.source._watch._watch:
            asyncio.get_running_loop().remove_reader(watch.fd)  # no event arrives any more
        write_unseen(tmp_path / "a.yaml", service("b"))
        found = await one.source.find_missed()
        assert found.places == ("a.yaml",)
        assert {(each.key, each.new is None) for each in found.changes} == {("default/a", True), ("default/b", False)}
        assert one.names == ["a"]
        one.source.list_again(found.places)
        await one.has("b")
        assert await one.source.find_missed() == Missed()


async def test_a_folder_that_is_gone(follow, tmp_path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text(service("a"))
    async with follow(folder) as one:
        await one.has("a")
        (folder / "a.yaml").unlink()
        folder.rmdir()
        with pytest.raises(TimedOut, match="nothing can be compared with the manifests"):
            await one.source.find_missed()
