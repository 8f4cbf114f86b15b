"""Hooks of mkdocs (mkdocs.yml): add the generated pages, and keep links inside the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # mkdocs loads this file by its path
    sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from tools.docs import reference  # noqa: E402

LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s]+)\)")
# files of the checkout outside of docs/ that are pages, or have one
PAGES_OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files in docs/."""
    for path, text in reference.pages():
        files.append(File.generated(config, path, content=text))
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "contributing.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links out of docs/ by links to pages, or by plain text."""
    above = "../" * page.file.src_uri.count("/")
    if page.file.src_uri == "contributing.md":  # it is in the root of the checkout
        return LINK.sub(
            lambda found: f"[{found[1]}]({_from_root(found[2])})" if _from_root(found[2]) else found[1], markdown
        )
    return LINK.sub(lambda found: _inside(found, above), markdown)


def _from_root(target: str) -> str:
    """Return a link of CONTRIBUTING.md as one of a page in docs/; '' for a file that has no page."""
    if "://" in target or target.startswith("#"):
        return target
    path, mark, anchor = target.partition("#")
    path = PAGES_OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
    return path + mark + anchor if path else ""


def _inside(found: re.Match[str], above: str) -> str:
    text, target = found[1], found[2]
    outside = target.removeprefix(above)
    if "://" in target or not target.startswith(f"{above}../"):
        return found[0]
    path, mark, anchor = outside.removeprefix("../").partition("#")
    if path in PAGES_OUTSIDE:
        return f"[{text}]({above}{PAGES_OUTSIDE[path]}{mark}{anchor})"
    return text if text.strip("`") == path else f"{text} (`{path}`)"
