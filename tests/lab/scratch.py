"""A folder for one agent, with its own bpf file system in it; the given stack removes both."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from tests.lab.netns import run


def scratch_folder(closing: contextlib.ExitStack, name: str) -> tuple[Path, Path]:
    """Return the folder, and the mount point."""
    folder = Path(tempfile.mkdtemp(prefix=f"lbagent-{name}-{os.getpid()}-"))
    closing.callback(shutil.rmtree, folder, ignore_errors=True)
    root = folder / "bpf"
    root.mkdir()
    run("mount", "-t", "bpf", "bpf", str(root))
    closing.callback(run, "umount", "-l", str(root))
    return folder, root
