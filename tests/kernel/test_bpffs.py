"""The place of the pins: a bpf file system is mounted if there is none, but never over a folder with files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lbagent.errors import ConfigError
from lbagent.kernel.bpffs import ensure_bpffs, is_bpffs

pytestmark = [pytest.mark.root, pytest.mark.bpf]


def test_it_is_mounted_where_there_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "new" / "one", tmp_path / "empty"):
        if path.name == "empty":
            path.mkdir()
        try:
            ensure_bpffs(path)
            assert is_bpffs(path)
            ensure_bpffs(path)  # the second time there is nothing to do
        finally:
            subprocess.run(["umount", str(path)], check=True)
        assert list(path.iterdir()) == []


def test_never_over_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="neither a bpf file system nor empty; nothing was mounted over it"):
        ensure_bpffs(tmp_path)
    assert not is_bpffs(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is not a folder; nothing was changed"):
        ensure_bpffs(tmp_path / "file" / below)


def test_a_mount_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    code = "import sys; from lbagent.kernel.bpffs import ensure_bpffs; ensure_bpffs(sys.argv[1])"
    argv = [
        "setpriv",
        "--inh-caps=-all",
        "--bounding-set=-sys_admin",
        sys.executable,
        "-c",
        code,
        str(tmp_path / "new"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert "KernelError: mount a bpf file system" in done.stderr
    assert list(tmp_path.iterdir()) == []
