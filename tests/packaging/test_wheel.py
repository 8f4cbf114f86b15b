"""`pip wheel` builds a package with programs, or ends with one sentence; its other files."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from lbagent.bpf.compiler.compile import DEBIAN_PACKAGES, bcc_version

ROOT = Path(__file__).resolve().parents[2]
ARTIFACT = "lbagent/bpf/lbagent.bpf.json"
DRY_ARTIFACT = "lbagent/bpf/lbagent.dry.bpf.json"
SAMPLING_ARTIFACT = "lbagent/bpf/lbagent.sampling.bpf.json"
PAGE = "lbagent/api/status_page.html"
PARTS = ("lbagent", "deploy", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
WITHOUT_BCC = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {DEBIAN_PACKAGES}/bcc && exec "$@"', "sh")

pytestmark = pytest.mark.slow


@pytest.fixture
def checkout(tmp_path):
    """A copy of the package's sources, with the programs built."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    return folder


def pip(folder: Path, source: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w", folder, source]
    return subprocess.run([*before, *command], cwd=folder.parent, capture_output=True, text=True)


def wheel(folder: Path, source: Path) -> zipfile.ZipFile:
    done = pip(folder, source)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    assert path.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    return zipfile.ZipFile(path)


def sdist(folder: Path, checkout: Path) -> Path:
    code = f"import hatchling.build as b; print(b.build_sdist({str(folder)!r}))"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True)
    (path,) = folder.glob("*.tar.gz")
    return path


def test_a_wheel_has_programs_units_and_example(checkout, tmp_path):
    with wheel(tmp_path / "dist", checkout) as found:
        names = {name.split(".data/data/")[-1] for name in found.namelist()}
        units = {f"lib/systemd/system/{name}.service" for name in ("lbagent", "lbagent-apilb")}
        assert units | {"share/lbagent/lbagent.yaml", ARTIFACT, DRY_ARTIFACT, SAMPLING_ARTIFACT, PAGE} <= names
        assert len(json.loads(found.read(ARTIFACT))["programs"]) > 30
        (entries,) = (name for name in found.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert "kubectl-lbagent = lbagent.cli.kubectl_plugin:main" in found.read(entries).decode()


@pytest.mark.skipif(not bcc_version(), reason="needs BCC")
def test_programs_that_were_not_built_are_compiled(checkout, tmp_path):
    (checkout / ARTIFACT).unlink()
    with wheel(tmp_path / "dist", checkout) as found:
        built = json.loads(found.read(ARTIFACT))
    assert built["source_hash"] == json.loads((ROOT / ARTIFACT).read_text())["source_hash"]


@pytest.mark.root
@pytest.mark.skipif(not (DEBIAN_PACKAGES / "bcc").is_dir(), reason="BCC is hidden by a mount over Debian's folder")
def test_without_bcc_and_without_programs_one_sentence_says_what_to_do(checkout, tmp_path):
    (checkout / ARTIFACT).unlink()
    done = pip(tmp_path / "dist", checkout, *WITHOUT_BCC)
    assert done.returncode != 0
    (line,) = [line.strip() for line in done.stderr.splitlines() if "lbagent:" in line]
    assert line.startswith("lbagent: no package without its BPF programs: ")
    assert "apt install python3-bpfcc" in line
    assert "make build" in line
    assert not list(tmp_path.glob("dist/*.whl"))


@pytest.mark.root
@pytest.mark.skipif(not (DEBIAN_PACKAGES / "bcc").is_dir(), reason="BCC is hidden by a mount over Debian's folder")
def test_an_sdist_holds_sources_and_programs_and_needs_no_bcc_then(checkout, tmp_path):
    path = sdist(tmp_path / "sdist", checkout)
    with tarfile.open(path) as found:
        names = {name.split("/", 1)[1] for name in found.getnames()}
    assert {ARTIFACT, "lbagent/bpf/lb4.c", "lbagent/bpf/stub/include/linux/bpf.h", "hatch_build.py"} <= names
    done = pip(tmp_path / "dist", path, *WITHOUT_BCC)
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(made) as wheel_file:
        assert ARTIFACT in wheel_file.namelist()
