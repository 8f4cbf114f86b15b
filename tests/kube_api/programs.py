"""kube-apiserver, etcd, kube-controller-manager, kube-proxy: those of the machine, else built once from Go modules, outside the checkout.

A kube-apiserver in KUBEBUILDER_ASSETS or on PATH is used when `etcd` and `kube-controller-manager` are there too; kube-proxy is
KUBE_PROXY, one on PATH, or the one built. What is built here is one program of 125 MB, kept below XDG_CACHE_HOME by the hash of its sources; its API server brings etcd with it.
Run alone (`python -m tests.kube_api.programs`) it builds what is missing and prints the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCES = ("go.mod", "go.sum", "main.go")
VERSION = "1.36.3"  # of k8s.io/kubernetes in go.mod
GO_PLACES = "/usr/local/go/bin:/usr/lib/go/bin"  # its folder if it is not on PATH
OLDEST_GO = (1, 21)  # from this version Go downloads the version of go.mod itself
NAMES = ("kube-apiserver", "kube-controller-manager")
KUBE_PROXY = "kube-proxy"
BUILDING = "tests/kube_api: building kube-apiserver, kube-controller-manager and kube-proxy, once (4 minutes of two cores, 0.8 GB of Go modules, 2.8 GB of build cache)"


class Missing(Exception):
    """A tool for building Go programs is missing."""


class BuildFailed(Exception):
    """The Go build failed."""


class Programs(NamedTuple):
    """Paths; `etcd` is None if the API server has its own."""

    apiserver: Path
    controller_manager: Path
    etcd: Path | None = None


def find_programs() -> Programs | None:
    """Return the machine's programs, else those built before, else None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    path = os.pathsep.join(filter(None, (assets, os.environ.get("PATH", ""))))
    found = [shutil.which(name, path=path) for name in (*NAMES, "etcd")]
    if all(found):
        return Programs(*(Path(each) for each in found if each))
    return _built(_folder()) if all((_folder() / name).exists() for name in NAMES) else None


def find_kube_proxy() -> Path | None:
    """Return the program of KUBE_PROXY (None if it cannot be run), else one on PATH, else the one built here, else None."""
    named = os.environ.get("KUBE_PROXY") or shutil.which(KUBE_PROXY) or str(_folder() / KUBE_PROXY)
    return Path(named) if os.access(named, os.X_OK) else None


def build_programs(say: Callable[[str], object]) -> Programs:
    """Return the programs, and build missing ones. Raises Missing, BuildFailed."""
    if found := find_programs():
        return found
    go = find_go("kube-apiserver with etcd and kube-controller-manager, none of which is there")
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of the tests may be building
        if found := find_programs():
            return found
        say(BUILDING)
        draft = folder / "kube.new"
        done = subprocess.run(_command(go, draft), cwd=HERE, env=go_environment(), capture_output=True, text=True)
        if done.returncode:
            raise BuildFailed(done.stderr[-2000:])
        for name in (*NAMES, KUBE_PROXY):
            (folder / name).unlink(missing_ok=True)
            os.link(draft, folder / name)
        draft.unlink()
    return _built(folder)


def _built(folder: Path) -> Programs:
    return Programs(*(folder / name for name in NAMES))


def _folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(b"\0".join((HERE / name).read_bytes() for name in SOURCES))
    return cache / "lbagent" / f"kube-{digest.hexdigest()[:16]}"


def find_go(purpose: str) -> str:
    """Return a Go that can build the modules. Raises Missing."""
    oldest = ".".join(map(str, OLDEST_GO))
    go = shutil.which("go") or shutil.which("go", path=GO_PLACES)
    if go is None:
        raise Missing(f"no Go ({oldest} or newer) to build {purpose}")
    said = subprocess.run([go, "env", "GOVERSION"], cwd="/", capture_output=True, text=True).stdout.strip()
    version = re.match(r"go(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_GO:
        raise Missing(f"no Go of {oldest} or newer to build {purpose}; {go} is {said or 'unknown'}")
    return go


def _command(go: str, output: Path) -> list[str]:
    package = "k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    set_version = f"-X {package}.gitVersion=v{VERSION} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    return ["nice", "-n", "15", go, "build", "-trimpath", "-ldflags", f"-s -w {set_version}", "-o", str(output), "."]


def go_environment() -> dict[str, str]:
    """Return the environment for building static programs with Go."""
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}


if __name__ == "__main__":
    try:
        print(build_programs(lambda text: print(text, file=sys.stderr)).apiserver.parent)
    except (Missing, BuildFailed) as error:
        sys.exit(str(error))
