"""After any operations on the folder, at any speed, the source has the objects of a fresh read."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from lbagent.sources.folder import manifest_files
from lbagent.sources.folder import source as module
from lbagent.sources.folder.source import FolderSource

pytestmark = pytest.mark.long

NAMES = [f"{number}.yaml" for number in range(5)]
SERVICE = """apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {clusterIP: 10.96.0.1, ports: [{port: %d}]}
"""


class Vandal:
    """Operations of people and their tools on a folder."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng, self.root, self.home, self.count = random.Random(seed), root, root / "home", 0
        self.home.mkdir(parents=True)
        self.acts = [
            self.write, self.write, self.spoil, self.rename_over, self.move, self.delete, self.link_over, self.hard_link, self.append,
            self.write_target, self.replace_folder,
        ]  # fmt: skip

    def text(self) -> str:
        return SERVICE % (self.rng.choice("abcdef"), self.rng.randint(1, 99))

    def any(self) -> Path:
        return self.home / self.rng.choice(NAMES)

    def draft(self) -> Path:
        self.count += 1
        draft = self.root / f"draft{self.count}"
        draft.write_text(self.text())
        return draft

    async def write(self) -> None:
        self.any().write_text(self.text())

    async def spoil(self) -> None:
        self.any().write_text(self.rng.choice(["", "kind: [", "# x\n", "\x00", "a: 1\na: 2\n"]))

    async def rename_over(self) -> None:
        self.draft().rename(self.any())

    async def move(self) -> None:
        self.any().rename(self.any())

    async def delete(self) -> None:
        self.any().unlink()

    async def link_over(self) -> None:
        (self.home / ".link").symlink_to(self.draft())
        (self.home / ".link").rename(self.any())

    async def hard_link(self) -> None:
        os.link(self.any(), self.any())

    async def append(self) -> None:
        with self.any().open("a") as file:
            file.write("---\n" + self.text())
            await asyncio.sleep(self.rng.choice([0, 0.01, 0.12]))

    async def write_target(self) -> None:
        self.any().resolve(strict=True).write_text(self.text())

    async def replace_folder(self) -> None:
        self.count += 1
        away = self.home.rename(self.root / f"away{self.count}")
        await asyncio.sleep(self.rng.choice([0, 0.02, 0.1]))
        if self.rng.random() < 0.5:
            away.rename(self.home)
        else:
            self.home.mkdir()
            self.any().write_text(self.text())

    async def act(self) -> None:
        for _ in range(self.rng.randint(10, 50)):
            try:
                await self.rng.choice(self.acts)()
            except OSError:
                pass  # what it wanted to touch is not there
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.choice([0, 0.005, 0.03, 0.15]))

    def make_good(self) -> None:
        """Leave no file with kept objects of an earlier read."""
        for path in [*self.home.glob("*.yaml")] or [self.home / NAMES[0]]:
            if (
                not path.exists()
                or manifest_files.load(str(path)).problems()
                or not manifest_files.load(str(path)).count
            ):
                path.unlink(missing_ok=True)
                path.write_text(self.text())


async def one(root: Path, seed: int, *, use_inotify: bool) -> None:
    vandal = Vandal(root, seed)
    (vandal.home / NAMES[0]).write_text(vandal.text())
    source = FolderSource(str(vandal.home), use_inotify=use_inotify, poll_s=0.05, rescan_s=0.15)
    known: dict = {}  # type: ignore[type-arg]

    def changed(changes) -> None:  # type: ignore[no-untyped-def]
        for change in changes:
            assert known.get(change.key) == change.old, f"seed {seed}"
            known[change.key] = change.new
            if change.new is None:
                del known[change.key]

    task = asyncio.create_task(source.run(changed))
    try:
        await source.synced.wait()
        await vandal.act()
        vandal.make_good()
        wanted = dict(manifest_files.load(str(vandal.home)).snapshot().services)
        async with asyncio.timeout(10):
            while not (known == dict(source.snapshot().services) == wanted and source.trusted):
                await asyncio.sleep(0.02)
                assert not task.done(), task
    except TimeoutError:
        pytest.fail(f"seed {seed}: {known} is not {wanted}; {[str(each) for each in source.problems()]}")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("use_inotify", [True, False], ids=["inotify", "polling"])
async def test_in_the_end_it_knows_what_is_there(tmp_path, monkeypatch, use_inotify):
    monkeypatch.setattr(module, "DELETE_DELAY_AFTER_LOSS_S", 0.2)
    await asyncio.gather(*[one(tmp_path / str(seed), seed, use_inotify=use_inotify) for seed in range(12)])
