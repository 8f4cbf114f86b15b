"""The container image: its files, the files left out, and a valid archive."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
# Blocks the modules that the image lacks, then runs the agent's code for the API: credentials, a request.
ASK = """
import asyncio, importlib.abc, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if any(name.startswith(each + ".") for each in sys.argv[1:]):
            raise ModuleNotFoundError(f"not in the image: {name}")

sys.meta_path.insert(0, Without())
from lbagent.agent import announcing, app
from lbagent.kube import kube_client
from lbagent.kube.kube_settings import KubeSettings
from lbagent.targets.bpf import bpf_plane

async def ask():
    client = kube_client.KubeClient(KubeSettings(kubeconfig=sys.stdin.readline().strip(), node_name="n"))
    for way in (client.post("/api", {"kind": "Event"}, silence_s=2),):
        try:
            await way
        except kube_client.ServerUnreachable as error:
            print(error)
    await client.close()

asyncio.run(ask())
"""
KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("image", str(ROOT / "deploy" / "image"))
    spec = importlib.util.spec_from_loader("image", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def needed(name: str, found: set[str]) -> set[str]:
    """Return the names of a package and of its dependencies here, without extras."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name not in found:
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                needed(wanted.name, found)
    return found


def blocks(name: str) -> dict[str, set[str]]:
    """Return each pinned package of a requirements file (`name==version`) with its hashes."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if "==" in line and not line.startswith("#"):
            found[line.split()[0]] = hashes = set()
        elif line.strip().startswith("--hash="):
            hashes.add(line.strip().removesuffix(" \\"))
    return found


def test_requirements_are_what_the_agent_needs_in_the_versions_that_are_tested() -> None:
    run, tested = blocks("requirements.txt"), blocks("requirements-dev.txt")
    assert {each.partition("==")[0] for each in run} == needed("lbagent", set()) - {"lbagent"}
    assert {name: tested.get(name) for name in run} == run


def test_what_is_left_out_is_never_loaded(tmp_path: Path) -> None:
    image = script()
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    left_out = [
        path.removeprefix(f"{image.PACKAGES}/").removesuffix("/[!_]*").replace("/", ".")
        for path in image.UNUSED_FILES
        if path.startswith(f"{image.PACKAGES}/kubernetes")
    ]
    assert "kubernetes.aio.client.models" in left_out
    asked = str(tmp_path / "kubeconfig")
    done = subprocess.run([sys.executable, "-c", ASK, *left_out], capture_output=True, text=True, input=asked)
    assert done.returncode == 0, done.stderr
    assert "Cannot connect to host 127.0.0.1:1" in done.stdout


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_the_archive_is_what_docker_save_writes(tmp_path: Path, suffix: str) -> None:
    image = script()
    (tmp_path / "root" / "usr").mkdir(parents=True)
    (tmp_path / "root" / "usr" / "file").write_text("text")
    output = tmp_path / f"image{suffix}"
    image.write_archive(tmp_path / "root", output, "lbagent:7")
    with tarfile.open(output) as archive:
        read = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    ((listed),) = json.loads(read["manifest.json"])
    assert listed["RepoTags"] == ["lbagent:7"]
    config = json.loads(read[listed["Config"]])
    assert config["architecture"] == {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    assert config["config"]["Entrypoint"] == ["lbagent"]
    (layer,) = (read[name] for name in listed["Layers"])
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
    (tmp_path / "layer").write_bytes(layer)
    with tarfile.open(tmp_path / "layer") as inner:
        assert {each.name: (each.uid, each.mtime) for each in inner} == dict.fromkeys(
            (".", "./usr", "./usr/file"), (0, 0)
        )


def test_the_same_files_give_the_same_image(tmp_path: Path) -> None:
    image = script()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("text")
    for made_at, name in enumerate(("a.tar", "b.tar"), 1_000_000):
        os.utime(tmp_path / "root" / "file", (made_at, made_at))
        image.write_archive(tmp_path / "root", tmp_path / name, "lbagent:7")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_the_dockerfile_makes_the_same_image() -> None:
    """Its second stage copies the files that deploy/image writes, and starts them in the same way."""
    build, _, final = DOCKERFILE.rpartition("\nFROM ")
    assert "deploy/image --files /image" in build
    assert "COPY --from=build /image/ /" in final
    assert 'ENTRYPOINT ["lbagent"]' in final
    assert f" {' '.join(script().DEBIAN)} " in final
    for word in script().CONFIG["Env"][1:]:
        assert word in final
    assert "bpfcc" not in final
    assert "python3-bpfcc" in build


def test_the_command_line_says_what_it_takes() -> None:
    done = subprocess.run([sys.executable, ROOT / "deploy" / "image", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"--output", "--tag", "--files", "--rootfs", "--package", "--wheel"} <= set(
        re.findall(r"--[a-z]+", done.stdout)
    )
