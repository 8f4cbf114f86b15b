"""Files are read without waiting: every other kind of file is rejected at once, also with a writer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from lbagent.kernel.regular_file import check_regular, open_regular, read_regular

pytestmark = pytest.mark.timeout(60)  # a read of a pipe without a writer never ends


def pipe(path: Path) -> None:
    os.mkfifo(path)


def sock(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))


@pytest.mark.parametrize("make", [pipe, sock, device, link_to_pipe])
@pytest.mark.parametrize("read", [read_regular, open_regular, check_regular])
def test_other_kinds_of_files_are_refused(
    tmp_path: Path, make: Callable[[Path], None], read: Callable[[str], object]
) -> None:
    make(path := tmp_path / "it.yaml")
    with pytest.raises(OSError, match="not a regular file") as caught:
        read(str(path))
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("read", [read_regular, open_regular, check_regular])
def test_a_folder_is_named_as_one_and_a_missing_file_as_missing(tmp_path: Path, read: Callable[[str], object]) -> None:
    with pytest.raises(IsADirectoryError):
        read(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        read(str(tmp_path / "none"))


def test_regular_files_links_to_them_and_dev_null_are_read(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "b"
    path.write_text("abc")
    link.symlink_to(path)
    assert (read_regular(str(path)), read_regular(str(link)), read_regular(str(path), 2)) == (b"abc", b"abc", b"ab")
    assert read_regular("/dev/null") == b""


def test_a_pipe_that_takes_the_place_of_the_file_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("abc")
    real = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda _path, **_: real)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(str(path))
    assert len(os.listdir("/proc/self/fd")) == before
