"""Programs of Debian packages that are unpacked and not installed: no service starts, nothing of the machine changes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.lab.netns import LabError, run

PODMAN = (
    *("podman", "conmon", "runc", "netavark", "golang-github-containers-common", "golang-github-containers-image"),
    *("libassuan0", "libgpgme11", "libip6tc2", "libsubid4"),
)  # 15 MB
DOCKER = ("docker.io", "containerd", "runc")  # 65 MB
HAPROXY = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")  # 2.5 MB
SSHD = ("openssh-server", "libwrap0", "libnsl2", "libtirpc3")  # 0.7 MB
PROMETHEUS = ("prometheus",)  # 19 MB; promtool is in it
USRSCTP = ("libusrsctp2",)  # 0.2 MB
TCPDUMP = ("tcpdump", "libpcap0.8", "libibverbs1", "libnl-3-200", "libnl-route-3-200", "libdbus-1-3")  # 1.2 MB
CHROMIUM = (
    *(
        "chromium-headless-shell",
        "chromium-common",
        "fonts-dejavu-core",
        "fontconfig-config",
        "libasound2",
        "libasyncns0",
    ),
    *(
        "libatk1.0-0",
        "libatspi2.0-0",
        "libbsd0",
        "libdav1d6",
        "libdbus-1-3",
        "libdouble-conversion3",
        "libdrm2",
        "libexpat1",
    ),
    *(
        "libflac12",
        "libfontconfig1",
        "libfreetype6",
        "libgbm1",
        "libglib2.0-0",
        "libgraphite2-3",
        "libharfbuzz-subset0",
    ),
    *(
        "libharfbuzz0b",
        "libjpeg62-turbo",
        "liblcms2-2",
        "libmd0",
        "libminizip1",
        "libmp3lame0",
        "libmpg123-0",
        "libnspr4",
    ),
    *("libnss3", "libogg0", "libopenh264-7", "libopenjp2-7", "libopus0", "libpng16-16", "libpulse0", "libsndfile1"),
    *("libvorbis0a", "libvorbisenc2", "libwayland-server0", "libx11-6", "libxau6", "libxcb-randr0", "libxcb1"),
    *("libxcomposite1", "libxdamage1", "libxdmcp6", "libxext6", "libxfixes3", "libxi6", "libxkbcommon0", "libxnvctrl0"),
    *("libxrandr2", "libxrender1"),
)  # 115 MB
SETS = {
    "podman": PODMAN,
    "docker": DOCKER,
    "haproxy": HAPROXY,
    "sshd": SSHD,
    "prometheus": PROMETHEUS,
    "tcpdump": TCPDUMP,
    "usrsctp": USRSCTP,
    "chromium": CHROMIUM,
}
PAUSES_S = 0, 5, 20, 60, 0  # after each attempt: a name server may not answer for a moment
LIBRARIES = "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib/aarch64-linux-gnu"


class Unpacked:
    """The files of some packages below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def program(self, name: str) -> Path:
        """Return a program's file; LabError if none of the packages has it."""
        for folder in ("usr/bin", "usr/sbin", "usr/lib/podman"):
            if (path := self.root / folder / name).exists():
                return path
        raise LabError(f"{name}: none of the packages in {self.root} has it")

    def library(self, name: str) -> Path:
        """Return a library's file; LabError if none of the packages has it."""
        for folder in LIBRARIES:
            if (path := self.root / folder / name).exists():
                return path
        raise LabError(f"{name}: none of the packages in {self.root} has it")

    def environment(self) -> dict[str, str]:
        """Return the variables with which the programs find one another and their libraries."""
        programs = [str(self.root / each) for each in ("usr/bin", "usr/sbin")]
        return {
            **os.environ,
            "PATH": ":".join([*programs, os.environ.get("PATH", ""), "/usr/sbin:/usr/bin:/sbin:/bin"]),
            "LD_LIBRARY_PATH": ":".join(str(self.root / each) for each in LIBRARIES),
        }


def unpacked(name: str, packages: Sequence[str], say: Callable[[str], object] = lambda _: None) -> Unpacked:
    """Return the packages' files, downloaded by apt-get the first time, before which `say` is called.

    LabError names what is missing.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lbagent"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / f"debian-{name}"
    with (cache / f"debian-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of other processes wait
        if not root.exists():
            say(f"tests: downloading Debian packages, once: {' '.join(packages)}")
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _download(Path(folder), packages)
                os.rename(Path(folder) / "root", root)
    return Unpacked(root)


def with_retries(argv: Sequence[str], folder: Path) -> None:
    """Run a command that downloads packages, and update apt's lists before each retry. Raises LabError."""
    for pause in PAUSES_S:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        time.sleep(pause)
        # a new machine has no lists, an old one outdated ones
        subprocess.run(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "update"], capture_output=True, check=False)
    raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _download(folder: Path, packages: Sequence[str]) -> None:
    if shutil.which("apt-get") is None:
        raise LabError(f"these Debian packages are needed and there is no apt-get: {' '.join(packages)}")
    with_retries(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages], folder)
    for package in folder.glob("*.deb"):
        run("dpkg-deb", "-x", str(package), str(folder / "root"))
