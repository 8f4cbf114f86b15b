"""Files, folders and headers that the documents name exist, and docs/datapath.md has one row for each header."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
HEADERS = ROOT / "lbagent" / "bpf" / "include"
# what `make` and tools create in a checkout: never what a document may name
MADE = {".git", ".venv", "__pycache__", "dist", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
# in backquotes with a slash or a suffix, and no file of the checkout: installed files, references, pins
NOT_OURS = {
    "kubernetes.io/service-name", "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/load-balancer-cleanup",
    "node.kubernetes.io/exclude-from-external-load-balancers",
    "node.cloudprovider.kubernetes.io/uninitialized", "node.cloudprovider.kubernetes.io/shutdown",
    "alpha.kubernetes.io/provided-node-ip",
    "cilium.io/v2",
    "lib/systemd/system/lbagent.service",
    "share/lbagent/lbagent.yaml",
    "pod/shop/web-0",
    "pods/exec",
    "pod/NAMESPACE/NAME",
    "BPFFS/v1/",
    "v1/resize/",
    "cluster.sh", "e2e.sh", "baseline.txt",  # of the scripts of a cluster
    "backend-health.json", "frontend-owners.json", "last-status.json",  # in --state-dir
    "status.json", "doctor.json", "defect.txt",  # members of a record
    "config.yaml", "state.yaml",  # a user's
    "build/site/index.html", "build/man/lbagent.1", "build/man",  # that `make docs` and `make man` make
}  # fmt: skip
# what docs/architecture.md says a coming capability adds; a file that is there leaves this list
COMING = {
    "api/page.html",
    "include/forward/dsr_ipip.h", "dsr_l2.h",
}  # fmt: skip
SUFFIXES = ("py", "c", "h", "md", "yaml", "toml", "sh", "json", "service", "txt")
BARE = re.compile(rf"(?<![\w./*{{-])((?:[\w.-]+/)*[\w-]+\.(?:{'|'.join(SUFFIXES)}))(?![\w/])")
PLACEHOLDER = re.compile(r"NAME|VERB|FILE|DIR")


@cache
def project_paths() -> frozenset[str]:
    """Return the path of each file, and of each folder with a slash at its end, from the root of the checkout."""
    found = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in MADE]
        here = Path(folder).relative_to(ROOT)
        found.update(str(here / name) for name in files)
        found.update(f"{here / name}/" for name in folders)
    return frozenset(found)


@cache
def ends_of_paths() -> frozenset[str]:
    """Return every end of a path, folders also without the slash at their end."""
    whole = {"/" + path for path in project_paths()}
    whole |= {path.removesuffix("/") for path in whole}
    return frozenset(path[at:] for path in whole for at, letter in enumerate(path) if letter == "/")


def exists(path: str) -> bool:
    """Return whether the project has this path, written from the root or from any folder below it."""
    return "/" + path.removeprefix("./") in ends_of_paths()


def named_paths(text: str) -> Iterator[str]:
    """Return what looks like a file or folder of the project: in backquotes with a slash, or anywhere with a known suffix."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for quoted in re.findall(r"`([^`\n]+)`", text):
        looks_like_one = "/" in quoted or quoted.endswith(tuple(f".{suffix}" for suffix in SUFFIXES))
        if (
            looks_like_one
            and re.fullmatch(r"[\w.][\w./-]*", quoted)
            and not quoted.startswith(
                ("lbagent.io/", "service.beta.kubernetes.io/", "service.cilium.io/", "kube-vip.io/")
            )
        ):
            yield quoted
    yield from BARE.findall(re.sub(r"https?://\S+|`[^`\n]*`|\]\([^)]*\)", "", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_exist(document: Path) -> None:
    """A path with a placeholder (`lbagent/sources/NAME/`) needs the folder before it."""
    wrong = []
    for path in named_paths(document.read_text()):
        whole = path.rpartition("/")[0] + "/" if PLACEHOLDER.search(path.rpartition("/")[2]) else path
        whole = whole[: found.start()] if (found := PLACEHOLDER.search(whole)) else whole
        if path not in NOT_OURS | COMING and not exists(whole):
            wrong.append(path)
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


def test_each_header_has_one_row_in_datapath() -> None:
    """A row begins with `FOLDER/NAME.h`, or with several of these."""
    text = (ROOT / "docs" / "datapath.md").read_text()
    cells = re.findall(r"^\| (`[\w/]+\.h`(?:, `[\w/]+\.h`)*) \|", text, re.MULTILINE)
    rows = sorted(name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    assert rows == sorted(str(path.relative_to(HEADERS)) for path in HEADERS.rglob("*.h"))


def test_coming_files_are_not_there_yet() -> None:
    assert [path for path in sorted(COMING) if exists(path)] == []
