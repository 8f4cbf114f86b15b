"""`make docs`: every page is in the navigation, links lead somewhere, and no page loads anything from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.docs import reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
READERS = [
    "Start",
    "Concepts",
    "Operate",
    "Kubernetes",
    "Load balancers",
    "API servers",
    "Datapath",
    "Reference",
    "Develop",
]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def named(entries: Any) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from named(value)


def test_the_navigation_names_every_page_once() -> None:
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")] + list(reference.PAGES) + ["contributing.md"]
    assert sorted(named(CONFIG["nav"])) == sorted(pages)
    assert [title for entry in CONFIG["nav"] for title in entry] == READERS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_with_all_links_right(site: Path) -> None:
    html = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert set(named(CONFIG["nav"])) <= html
    assert (site / "comparison.svg").is_file()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\bsrc=["']?(?:https?:)?//|<link[^>]*\bhref=["']?(?:https?:)?//"""
    )
    wrong = [str(path.relative_to(site)) for path in site.rglob("*.html") if loads.search(path.read_text())]
    css = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""")
    wrong += [str(path.relative_to(site)) for path in site.rglob("*.css") if css.search(path.read_text())]
    assert wrong == []


def test_links_to_files_of_the_checkout_are_text(site: Path) -> None:
    for path in site.rglob("*.html"):
        if path.name == "404.html":  # for servers: its links begin at their root
            continue
        targets = re.findall(r'href="([^"#]*)', path.read_text())
        inside = [target for target in targets if target and "://" not in target and not target.startswith("mailto:")]
        assert [target for target in inside if not (path.parent / target).resolve().exists()] == []
