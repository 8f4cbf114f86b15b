"""Copies of manifests on a file system that is full, read-only, or that an earlier agent left in the middle of a copy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.sources.folder import copies as module
from lbagent.sources.folder.copies import ManifestCopies, signature_of
from tests.lab.netns import run

SMALL, LARGE = "a: 1\n", "#" + "x" * 100_000 + "\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "copies"
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder))
    yield folder
    run("umount", str(folder))


def save(copies: ManifestCopies, *paths: Path) -> dict[str, str]:
    """Copy files as they are now; return what failed, by name."""
    for path in paths:
        copies.note(str(path), signature_of(str(path)))
    failed = copies.save(copies.take())
    return {os.path.basename(path): why for path, why in failed.items()}


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.root
def test_on_a_full_file_system_an_outdated_copy_is_deleted_and_the_other_files_go_on(home: Path, tiny: Path) -> None:
    copies = ManifestCopies(str(tiny))
    a, b = home / "a.yaml", home / "b.yaml"
    a.write_text(SMALL)
    b.write_text(SMALL)
    assert save(copies, a, b) == {}
    a.write_text(LARGE)
    b.write_text("b: 2\n")
    assert save(copies, a, b) == {"a.yaml": "No space left on device"}
    assert content(tiny) == {"b.yaml": "b: 2\n"}, "no outdated copy, no draft"
    a.write_text(SMALL)
    assert save(copies, a) == {}
    assert content(tiny) == {"a.yaml": SMALL, "b.yaml": "b: 2\n"}


@pytest.mark.root
def test_a_copy_that_cannot_be_deleted_is_named(home: Path, tiny: Path) -> None:
    copies, a = ManifestCopies(str(tiny)), home / "a.yaml"
    a.write_text(SMALL)
    assert save(copies, a) == {}
    run("mount", "-o", "remount,ro", str(tiny))
    a.write_text("a: 2\n")
    assert save(copies, a) == {
        "a.yaml": "Read-only file system (the outdated copy cannot be deleted: Read-only file system)"
    }
    a.write_text(SMALL)
    os.utime(a, ns=(signature_of(str(tiny / "a.yaml"))[2],) * 2)  # type: ignore[index]
    assert save(copies, a) == {}, "the copy is up to date"


@pytest.mark.root
async def test_what_failed_is_said_and_tried_again(home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY_S", 0.01)
    monkeypatch.setattr(module, "COPY_RETRY_DELAY_S", 0.05)
    copies, a, b = ManifestCopies(str(tiny)), home / "a.yaml", home / "b.yaml"
    (tiny / "a.yaml.new").write_text("cut sh")  # of an agent that was killed
    for path in (a, b):
        path.write_text(LARGE)
    task = asyncio.create_task(copies.run())
    try:
        for path in (a, b):
            copies.note(str(path), signature_of(str(path)))
        await until(copies.failure)
        assert copies.failure().startswith(
            f"copies of good manifests cannot be written to {tiny}: a.yaml: No space left on device, and 1 more; "
        )
        assert content(tiny) == {}, "the draft of the earlier agent is gone"
        run("mount", "-o", "remount,size=1m", str(tiny))
        await until(lambda: not copies.failure())
        assert content(tiny) == {"a.yaml": LARGE, "b.yaml": LARGE}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a thread writes
            await asyncio.sleep(0.01)


def test_a_deleted_manifest_has_no_copy(home: Path, tmp_path: Path) -> None:
    folder, a = tmp_path / "copies", home / "a.yaml"
    copies = ManifestCopies(str(folder))
    a.write_text(SMALL)
    assert save(copies, a) == {}
    copies.note(str(a), None)
    assert copies.save(copies.take()) == {}
    assert content(folder) == {}
