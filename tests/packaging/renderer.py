"""Renders deploy/ as `kubectl apply -k` and `helm install` do: their own packages, in one program built once from Go modules.

It is stored below XDG_CACHE_HOME by the hash of its sources, as the programs of tests/kube_api are.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.kube_api.programs import BuildFailed, find_go, go_environment

HERE = Path(__file__).parent / "render"
SOURCES = ("go.mod", "go.sum", "main.go")
BUILDING = "tests/packaging: building a renderer of kustomizations and Helm charts, once (a minute of two cores, 0.2 GB of Go modules)"
Obj = dict[str, Any]


def build_renderer(say: Callable[[str], object]) -> Path:
    """Return the program, and build it if it is missing. Raises Missing (no Go), BuildFailed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(b"\0".join((HERE / name).read_bytes() for name in SOURCES))
    folder = cache / "lbagent" / f"render-{digest.hexdigest()[:16]}"
    program = folder / "render"
    if program.exists():
        return program
    go = find_go("a renderer of kustomizations and Helm charts")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of the tests may be building
        if not program.exists():
            say(BUILDING)
            command = ["nice", "-n", "15", go, "build", "-trimpath", "-ldflags", "-s -w", "-o", folder / "draft", "."]
            done = subprocess.run(command, cwd=HERE, env=go_environment(), capture_output=True, text=True)
            if done.returncode:
                raise BuildFailed(done.stderr[-2000:])
            (folder / "draft").rename(program)
    return program


def render(program: Path, *words: object) -> dict[tuple[str, str], Obj]:
    """Return the objects by kind and name. `words`: `kustomize DIR`, or `helm CHART [VALUES]`."""
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    objects = [obj for obj in yaml.safe_load_all(done.stdout) if obj]
    found = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    assert len(found) == len(objects), "an object is there twice"
    return found
