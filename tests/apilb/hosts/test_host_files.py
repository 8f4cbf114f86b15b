"""Files of a host, written in each of the three ways: here, by sftp, by the container runtime. A write is atomic."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lbagent.apilb.hosts import runtime_files
from lbagent.apilb.hosts.container_runtime import ContainerRuntime
from lbagent.apilb.hosts.host_files import HostFiles, LocalFiles
from lbagent.apilb.hosts.runtime_files import RuntimeFiles
from lbagent.apilb.hosts.ssh_connection import connected
from lbagent.apilb.hosts.ssh_files import SshFiles
from lbagent.errors import LbError, Refused
from tests.apilb.hosts.host_lab import POOL, HostLab
from tests.lab.netns import run
from tests.lab.podman import IMAGE

pytestmark = pytest.mark.root
WAYS = ("here", "sftp", "runtime")
UID = 65534


@contextlib.asynccontextmanager
async def files_of(lab: HostLab, way: str) -> AsyncIterator[HostFiles]:
    """Yield the files of the host, by one way."""
    if way == "here":
        yield LocalFiles()
    elif way == "sftp":
        with lab.space.entered():
            async with connected(lab.access()) as host, host.sftp() as client:
                yield SshFiles("ssh://host", client)
    else:
        runtime = ContainerRuntime("direct", lab.podman.docker_host, str(lab.podman.socket))
        yield RuntimeFiles(runtime, POOL, "files", IMAGE)
        assert "files-config" not in lab.names()
        await runtime.close()


@pytest.fixture
def folder(lab: HostLab, request: pytest.FixtureRequest) -> Path:
    """A folder of a short path that podman sees."""
    folder: Path = lab.folder / request.node.name.replace("[", "-").rstrip("]")
    folder.mkdir()
    return folder


@pytest.mark.parametrize("way", WAYS)
async def test_a_file_is_written_in_a_folder_that_is_made(lab: HostLab, folder: Path, way: str) -> None:
    path = folder / "a" / "b" / "x.cfg"
    async with files_of(lab, way) as files:
        assert await files.read(str(path)) is None
        draft = await files.write_draft(str(path), "one\n", UID)
        assert os.path.dirname(draft) == str(path.parent)
        assert not path.exists()
        await files.rename(draft, str(path))
        found = [
            (stat.S_IMODE(each.stat().st_mode), each.stat().st_uid) for each in (path, path.parent, path.parent.parent)
        ]
        assert found == [(0o600, UID), (0o700, UID), (0o755, 0)]
        first = path.stat().st_ino
        await files.rename(await files.write_draft(str(path), "zwei: ä\n", UID), str(path))
        assert path.read_text() == "zwei: ä\n"
        assert path.stat().st_ino != first
        assert await files.read(str(path)) == "zwei: ä\n"


@pytest.mark.parametrize("way", WAYS)
async def test_a_folder_that_is_there_stays_as_it_is(lab: HostLab, folder: Path, way: str) -> None:
    (folder / "there").mkdir(mode=0o750)
    path = folder / "there" / "x.cfg"
    async with files_of(lab, way) as files:
        await files.rename(await files.write_draft(str(path), "text", UID), str(path))
    assert (stat.S_IMODE(path.parent.stat().st_mode), path.parent.stat().st_uid) == (0o750, 0)


@pytest.mark.parametrize("way", WAYS)
async def test_a_folder_for_a_file_and_the_reverse_are_refused(lab: HostLab, folder: Path, way: str) -> None:
    (folder / "x.cfg").mkdir()
    (folder / "file").write_text("the operator's")
    async with files_of(lab, way) as files:
        for work in (files.read(str(folder / "x.cfg")), files.write_draft(str(folder / "x.cfg"), "text", UID)):
            with pytest.raises(Refused, match=rf"{folder}/x.cfg is a folder, and a file must be written there"):
                await work
        with pytest.raises(Refused, match=rf"{folder}/file is a file, and a folder is needed there"):
            await files.write_draft(str(folder / "file" / "x.cfg"), "text", UID)
    assert sorted(os.listdir(folder)) == ["file", "x.cfg"]
    assert (folder / "file").read_text() == "the operator's"


@pytest.mark.parametrize("way", ["here", "sftp"])
async def test_a_full_disk_leaves_the_file_as_it_was(lab: HostLab, folder: Path, way: str) -> None:
    with tmpfs(lab, folder, way) as seen:
        path = folder / "x.cfg"
        (seen / "x.cfg").write_text("as it was")
        (seen / "fill").write_bytes(b"x" * 48 * 1024)
        async with files_of(lab, way) as files:
            with pytest.raises(LbError, match=rf"{path}: .*(No space left|disk full).*the file is as it was"):
                await files.write_draft(str(path), "long " * 10000, UID)
        assert (seen / "x.cfg").read_text() == "as it was"
        assert sorted(os.listdir(seen)) == ["fill", "x.cfg"]


@contextlib.contextmanager
def tmpfs(lab: HostLab, folder: Path, way: str) -> Iterator[Path]:
    """Yield a small disk in the host's mount namespace (sshd has its own), by a local path."""
    enter: list[str] = []
    if way == "sftp":
        process = lab.sshd.process
        assert process is not None
        enter, seen = ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt"], Path(f"/proc/{process.pid}/root{folder}")
    else:
        seen = folder
    run(*enter, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder))
    try:
        yield seen
    finally:
        run(*enter, "umount", "-l", str(folder))


@pytest.mark.parametrize("way", WAYS)
async def test_a_removed_file_is_gone_and_may_have_been(lab: HostLab, folder: Path, way: str) -> None:
    path = folder / "x.cfg"
    path.write_text("text")
    async with files_of(lab, way) as files:
        assert await files.remove(str(path)) is True
        assert not path.exists()
        assert await files.remove(str(path)) is True


async def test_an_image_without_rm_leaves_a_file(lab: HostLab, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_files, "REMOVE", "no-such-program")
    path = folder / "x.cfg"
    path.write_text("text")
    async with files_of(lab, "runtime") as files:
        assert await files.remove(str(path)) is False
    assert path.exists()


@pytest.mark.parametrize("way", WAYS)
async def test_a_draft_of_a_process_that_was_killed_is_replaced(lab: HostLab, folder: Path, way: str) -> None:
    path = folder / "x.cfg"
    (folder / ".x.cfg.lbagent-new").write_text("half")
    async with files_of(lab, way) as files:
        draft = await files.write_draft(str(path), "whole", UID)
        assert draft == str(folder / ".x.cfg.lbagent-new")
        assert (folder / ".x.cfg.lbagent-new").read_text() == "whole"
        assert not path.exists()


async def test_a_helper_container_that_was_left_is_removed_and_a_foreign_one_is_not(lab: HostLab, folder: Path) -> None:
    path = folder / "x.cfg"
    path.write_text("text")
    lab.podman.run("create", "--name", "files-config", "--label", f"io.lbagent.pool={POOL}", IMAGE, "haproxy", "-v")
    async with files_of(lab, "runtime") as files:
        assert await files.read(str(path)) == "text"
    lab.podman.run("create", "--name", "files-config", IMAGE, "haproxy", "-v")
    try:
        with pytest.raises(Refused, match="files-config exists and is not lbagent's"):
            await RuntimeFiles(
                ContainerRuntime("direct", lab.podman.docker_host, str(lab.podman.socket)), POOL, "files", IMAGE
            ).read(str(path))
        assert "files-config" in lab.names()
    finally:
        lab.podman.run("rm", "files-config")
