"""Takes away what an agent has pinned: programs, links and maps."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lbagent.bpf.load import datapath


def remove_pins(root: Path) -> list[str]:
    """Take programs, links and maps away. The caller holds the lock."""
    gone = [f"detached {item.hook} from {item.target.name}" for item in datapath.remove(root)]
    pins = sorted(item for item in root.rglob("*") if not item.is_dir())
    for pin in pins:
        pin.unlink()
    gone += [f"removed map {pin.name}" for pin in pins]
    for folder in sorted((item for item in root.rglob("*") if item.is_dir()), reverse=True):
        folder.rmdir()
    root.rmdir()
    with contextlib.suppress(OSError):
        root.parent.rmdir()  # only when it is ours and empty; a mount point stays
    return gone
