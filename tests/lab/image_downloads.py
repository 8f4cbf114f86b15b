"""The parts of the container image, downloaded once into the cache: Debian's packages and Python's wheels (49 MB)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.lab.debian_packages import with_retries
from tests.lab.netns import LabError
from tests.lab.topology import ROOT

SCRIPT = ROOT / "deploy" / "image"


def image_downloads(say: Callable[[str], object] = lambda _: None) -> Path:
    """Return the folder for `deploy/image --from`, filled the first time. `say` is called before that. Raises LabError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lbagent"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"image-{_digest()}"
    with (cache / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of other processes wait
        if not folder.exists():
            if shutil.which("apt-get") is None:
                raise LabError("no apt-get, for Debian's Python")
            say("tests: downloading what the container image is made of, once (49 MB)")
            with tempfile.TemporaryDirectory(dir=cache) as draft:
                with_retries([sys.executable, str(SCRIPT), "--download", f"{draft}/new"], Path(draft))
                os.rename(f"{draft}/new", folder)
    return folder


def _digest() -> str:
    """Return the key of the downloads: the script's list of packages, the requirements, Debian's release, this Python."""
    release = Path("/etc/os-release").read_bytes()
    (packages,) = re.findall(rb"^DEBIAN = .*$", SCRIPT.read_bytes(), re.MULTILINE)
    parts = (packages, (ROOT / "requirements.txt").read_bytes(), release, platform.python_version().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
