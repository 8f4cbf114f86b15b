"""The manifest folder: detected changes, kept objects, messages."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from lbagent.sources.folder import source as module
from lbagent.sources.folder.source import FolderSource

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
"""


def service(name):
    return SERVICE.replace("NAME", name)


class Follower:
    """The objects of a listener after the changes that it received."""

    def __init__(self, source):
        self.source = source
        self.known = {}
        self.calls = 0
        self.generation = 0  # as `lbagent status` counts it

    def __call__(self, changes):
        self.calls += 1
        self.generation += bool(changes)
        for change in changes:
            assert self.known.get((change.kind, change.key)) == change.old
            if change.new is None:
                del self.known[change.kind, change.key]
            else:
                self.known[change.kind, change.key] = change.new

    @property
    def names(self):
        return sorted(obj.name for obj in self.known.values())

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the source reports changes, not every change of `problems`
                await asyncio.sleep(0.005)
        assert {obj.key for obj in self.known.values()} == set(self.source.snapshot().services)

    async def has(self, *names):
        await self.until(lambda: self.names == sorted(names))

    async def reports(self, words):
        await self.until(lambda: any(words in str(problem) for problem in self.source.problems()))


@pytest.fixture(params=[True, False], ids=["inotify", "polling"])
def follow(request, monkeypatch):
    monkeypatch.setattr(module, "DELETE_DELAY_AFTER_LOSS_S", 0.3)

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


async def test_files_come_change_and_go(follow, tmp_path):
    (tmp_path / "a.yaml").write_text(service("a"))
    async with follow(tmp_path) as seen:
        await seen.has("a")
        (tmp_path / "b.yml").write_text(service("b"))
        await seen.has("a", "b")
        (tmp_path / "b.new").write_text(service("c"))
        os.rename(tmp_path / "b.new", tmp_path / "b.yml")
        await seen.has("a", "c")
        (tmp_path / "a.yaml").unlink()
        await seen.has("c")
        assert not seen.source.problems()
        assert seen.source.trusted


async def test_the_first_call_holds_everything(follow, tmp_path):
    for number in range(50):
        (tmp_path / f"{number}.yaml").write_text(service(f"s{number}"))
    async with follow(tmp_path) as seen:
        assert len(seen.known) == 50
        assert seen.calls == 1


async def test_a_broken_file_keeps_its_last_good_objects(follow, tmp_path):
    (tmp_path / "a.yaml").write_text(service("a"))
    (tmp_path / "b.yaml").write_text(service("b"))
    async with follow(tmp_path) as seen:
        (tmp_path / "a.yaml").write_text("kind: [")
        await seen.reports("a.yaml:1: ")
        assert "kept 1 objects of generation 1" in str(seen.source.problems()[0])
        (tmp_path / "b.yaml").write_text(service("c"))
        await seen.has("a", "c")
        (tmp_path / "a.yaml").write_text(service("d"))
        await seen.has("c", "d")
        await seen.until(lambda: not seen.source.problems())


async def test_a_message_names_the_generation_that_status_shows(follow, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(service(name))
    async with follow(tmp_path) as seen:
        (tmp_path / "b.yaml").write_text(service("b").replace("80", "81"))
        await seen.until(lambda: seen.known["Service", "default/b"].ports[0].port == 81)
        changed = seen.generation
        assert changed == 2
        (tmp_path / "b.yaml").write_text(service("b").replace("80", "81") + "# the same\n")
        (tmp_path / "c.yaml").write_text(service("d"))
        await seen.has("a", "b", "d")
        for name in ("a", "b", "c"):
            (tmp_path / f"{name}.yaml").write_text("kind: [")
        await seen.until(lambda: len(seen.source.problems()) == 3)
        said = [str(problem).rsplit(" ", 1)[1] for problem in seen.source.problems()]
        assert said == ["1", "2", str(seen.generation)]


async def test_a_port_that_turns_bad_is_kept_until_it_is_good_again(follow, tmp_path):
    (tmp_path / "a.yaml").write_text(service("a"))
    async with follow(tmp_path) as seen:
        (tmp_path / "a.yaml").write_text(service("a").replace("80", "800000"))
        await seen.reports("spec.ports[0].port: 800000 is not a port of 1-65535; kept port 80 of generation 1")
        assert [port.port for port in seen.known["Service", "default/a"].ports] == [80]
        (tmp_path / "a.yaml").write_text(service("a").replace("80", "81"))
        await seen.until(lambda: seen.known["Service", "default/a"].ports[0].port == 81 and not seen.source.problems())


async def test_a_large_file_holds_nobody_up(follow, tmp_path):
    many = "---".join(service(f"s{number}") for number in range(3000))
    (tmp_path / "b.yaml").write_text(service("b"))
    async with follow(tmp_path) as seen:
        turns = 0
        (tmp_path / "a.yaml").write_text(many)
        (tmp_path / "a.yaml").write_text(many.replace("port: 80", "port: 81"))
        (tmp_path / "b.yaml").write_text(service("c"))
        while len(seen.known) < 3001:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 3
        await seen.until(lambda: {obj.ports[0].port for obj in seen.known.values() if obj.name != "c"} == {81})
        await seen.until(lambda: ("Service", "default/c") in seen.known and ("Service", "default/b") not in seen.known)


async def test_an_emptied_folder_keeps_everything(follow, tmp_path):
    (tmp_path / "a.yaml").write_text(service("a"))
    async with follow(tmp_path) as seen:
        (tmp_path / "a.yaml").unlink()
        await seen.reports("the folder holds no manifest; kept 1 objects of generation 1")
        assert not seen.source.trusted
        assert seen.source.distrust == seen.source.problems()[0]
        assert seen.names == ["a"]
        (tmp_path / "b.yaml").write_text(service("b"))
        await seen.has("b")
        await seen.until(lambda: seen.source.trusted and not seen.source.problems())
        assert seen.source.distrust is None


async def test_a_folder_that_disappears_keeps_everything_and_is_followed_when_it_is_back(follow, tmp_path):
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    (home / "a.yaml").write_text(service("a"))
    (home / "b.yaml").write_text(service("b"))
    async with follow(home) as seen:
        home.rename(away)
        await seen.reports("the folder cannot be read: No such file or directory; kept 2 objects of generation 1")
        assert not seen.source.trusted
        away.rename(home)
        await seen.until(lambda: seen.source.trusted)
        assert seen.names == ["a", "b"]
        (home / "b.yaml").write_text(service("c"))
        await seen.has("a", "c")
        (home / "c.yaml").write_text(service("d"))
        (home / "a.yaml").unlink()
        await seen.has("c", "d")


async def test_a_folder_that_comes_later(follow, tmp_path):
    async with follow(tmp_path / "later") as seen:
        assert not seen.source.trusted
        assert seen.calls == 1
        (tmp_path / "later").mkdir()
        (tmp_path / "later" / "a.yaml").write_text(service("a"))
        await seen.has("a")
        await seen.until(lambda: seen.source.trusted)


async def test_a_folder_in_place_of_the_folder(follow, tmp_path):
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    for place, name in ((old, "a"), (new, "b")):
        place.mkdir()
        (place / f"{name}.yaml").write_text(service(name))
    link.symlink_to(old)
    async with follow(link) as seen:
        assert seen.names == ["a"]
        (tmp_path / "next").symlink_to(new)
        os.rename(tmp_path / "next", link)
        await seen.has("b")


async def test_mounted_configmaps_are_exchanged_at_once(follow, tmp_path):
    for version, name in (("..1", "a"), ("..2", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "web.yaml").write_text(service(name))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "web.yaml").symlink_to("..data/web.yaml")
    async with follow(tmp_path) as seen:
        assert seen.names == ["a"]
        (tmp_path / "..data_tmp").symlink_to("..2")
        os.rename(tmp_path / "..data_tmp", tmp_path / "..data")
        await seen.has("b")


async def test_a_file_replaced_the_way_editors_do_is_not_gone_in_between(follow, tmp_path):
    (tmp_path / "a.yaml").write_text(service("a"))
    (tmp_path / "z.yaml").write_text(service("z"))
    async with follow(tmp_path) as seen:
        told = []
        inner = seen.__class__.__call__
        seen.__class__.__call__ = lambda self, changes: (told.extend(changes), inner(self, changes))[1]
        try:
            os.rename(tmp_path / "a.yaml", tmp_path / "a.yaml~")
            await asyncio.sleep(0.03)
            (tmp_path / "a.yaml").write_text(service("a").replace("80", "81"))
            await seen.until(lambda: any(obj.name == "a" and obj.ports[0].port == 81 for obj in seen.known.values()))
        finally:
            seen.__class__.__call__ = inner
        assert all(change.new is not None for change in told)


async def test_unreadable_entries_are_said(follow, tmp_path):
    (tmp_path / "a.yaml").write_text(service("a"))
    (tmp_path / "dir.yaml").mkdir()
    (tmp_path / "dead.yaml").symlink_to("nowhere")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "mem.yaml").symlink_to("/proc/self/mem")  # a regular file that cannot be read
    os.mkfifo(tmp_path / "pipe.yaml")
    async with follow(tmp_path) as seen:
        await seen.has("a")
        said = sorted(str(problem).removeprefix(f"{tmp_path}/") for problem in seen.source.problems())
        assert said == [
            "dead.yaml: cannot be read: No such file or directory; kept 0 objects of generation 0",
            "dir.yaml: not a regular file; kept 0 objects of generation 0",
            "loop.yaml: cannot be read: Too many levels of symbolic links; kept 0 objects of generation 0",
            "mem.yaml: cannot be read: Input/output error; kept 0 objects of generation 0",
            "pipe.yaml: not a regular file; kept 0 objects of generation 0",
        ]


async def test_a_file_beyond_the_bound_is_not_even_read(follow, tmp_path):
    (tmp_path / "a.yaml").write_text(service("a"))
    (tmp_path / "b.yaml").write_text(service("b"))
    async with follow(tmp_path) as seen:
        with (tmp_path / "a.yaml").open("r+") as file:
            file.truncate(65 << 20)  # zeros without a block on the disk
        await seen.reports(
            "a.yaml: larger than 64 MiB: spread its objects over several files; kept 1 objects of generation 1"
        )
        (tmp_path / "b.yaml").write_text(service("c"))
        await seen.has("a", "c")


async def test_many_changes_at_once(follow, tmp_path):
    async with follow(tmp_path) as seen:
        for number in range(300):
            (tmp_path / f"{number}.yaml").write_text(service(f"s{number}"))
        await seen.until(lambda: len(seen.known) == 300)
        for number in range(0, 300, 2):
            (tmp_path / f"{number}.yaml").unlink()
        await seen.until(lambda: len(seen.known) == 150)


async def test_a_file_broken_while_the_agent_was_away_keeps_its_objects(monkeypatch, tmp_path):
    monkeypatch.setattr("lbagent.sources.folder.copies.DELAY_S", 0.01)
    home = tmp_path / "home"
    copies = tmp_path / "copies" / str(home).strip("/").replace("/", "-")
    home.mkdir()
    for name in ("a", "b", "c"):
        (home / f"{name}.yaml").write_text(service(name))

    @asynccontextmanager
    async def agent():
        source = FolderSource(str(home), last_good=str(tmp_path / "copies"))
        follower = Follower(source)
        task = asyncio.create_task(source.run(follower))
        await asyncio.wait_for(source.synced.wait(), 5)
        yield follower
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async with agent() as seen:
        (home / "c.yaml").unlink()
        await seen.has("a", "b")
        await seen.until(lambda: sorted(os.listdir(copies)) == ["a.yaml", "b.yaml"] if copies.exists() else False)
    (home / "a.yaml").write_text("kind: [")
    (home / "b.yaml").write_text(service("b").replace("80", "0"))
    (home / "c.yaml").write_text("kind: [")
    async with agent() as seen:
        assert seen.names == ["a", "b"]
        said = [str(problem).removeprefix(f"{home}/") for problem in seen.source.problems()]
        assert said[0].startswith("a.yaml:1: ")
        assert said[0].endswith("; kept 1 objects of generation 0")
        assert said[1].endswith(": 0 is not a port of 1-65535; kept port 80 of generation 0")
        assert said[2].endswith("; kept 0 objects of generation 0")
        (home / "a.yaml").write_text(service("d"))
        await seen.has("b", "d")


@pytest.fixture
def restarted(monkeypatch, tmp_path):
    """Run a source with copies, as an agent does that is started again and again."""
    monkeypatch.setattr("lbagent.sources.folder.copies.DELAY_S", 0.01)
    monkeypatch.setattr(module, "DELETE_DELAY_AFTER_LOSS_S", 0.2)

    @asynccontextmanager
    async def agent(*, resumes=True):
        source = FolderSource(str(tmp_path / "home"), last_good=str(tmp_path / "copies"), rescan_s=0.2, poll_s=0.05)
        if resumes:
            source.resume()
        follower = Follower(source)
        task = asyncio.create_task(source.run(follower))
        await asyncio.wait_for(source.synced.wait(), 5)
        yield follower
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return agent


@pytest.mark.parametrize("trouble", ["gone", "empty"])
async def test_without_its_folder_a_restarted_agent_knows_the_names_of_what_it_serves(restarted, tmp_path, trouble):
    home, copies = tmp_path / "home", tmp_path / "copies" / str(tmp_path / "home").strip("/").replace("/", "-")
    home.mkdir()
    for name in ("a", "b"):
        (home / f"{name}.yaml").write_text(service(name))
    async with restarted() as seen:
        await seen.until(lambda: copies.exists() and sorted(os.listdir(copies)) == ["a.yaml", "b.yaml"])
    home.rename(tmp_path / "away")
    if trouble == "empty":
        home.mkdir()
    async with restarted(resumes=False) as seen:  # nothing is served: nothing is to be kept
        assert seen.names == []
    async with restarted() as seen:
        assert seen.calls == 1
        assert seen.names == ["a", "b"]
        assert not seen.source.trusted
        assert "; kept 2 objects of generation 0" in str(seen.source.problems()[0])
        assert len(seen.source.problems()) == 1
        (tmp_path / "away" / "b.yaml").unlink()
        (tmp_path / "away" / "c.yaml").write_text(service("c"))
        if trouble == "empty":
            home.rmdir()
        (tmp_path / "away").rename(home)
        await seen.has("a", "c")
        await seen.until(lambda: seen.source.trusted and not seen.source.problems())
        assert seen.source.trusted
