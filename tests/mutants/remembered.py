"""What each packet test reaches, kept in a file from one run to the next; of use while tests are written and headers stay."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.mutants import c_mutants, c_tree
from tests.mutants.mutant import ROOT
from tests.mutants.trial import Survey


class Remembered:
    """A file of lines, one for each test: headers and module it was run with, and what came of it. No file (''): nothing is kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        headers = sorted((ROOT / "lbagent" / "bpf" / "include").rglob("*.h"))
        sources = [*headers, Path(c_mutants.__file__), Path(c_tree.__file__)]  # the latter number the places
        self._headers = b"\0".join(source.read_bytes() for source in sources)

    def known(self, items: Iterable[pytest.Item]) -> dict[str, Survey]:
        """Return what is known of these tests."""
        if not os.path.exists(self._path):
            return {}
        lines = map(json.loads, Path(self._path).read_text(encoding="utf-8").splitlines())
        found = {
            (key, name): Survey(passed, seconds, frozenset(reached)) for key, name, passed, seconds, reached in lines
        }
        keys = {item.nodeid: self._key(item.nodeid) for item in items}
        return {name: found[key, name] for name, key in keys.items() if (key, name) in found}

    def note(self, name: str, survey: Survey) -> None:
        """Add a test."""
        if not self._path:
            return
        line = json.dumps([self._key(name), name, survey.passed, survey.seconds, sorted(survey.reached)])
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _key(self, name: str) -> str:
        module = (ROOT / name.split("::", maxsplit=1)[0]).read_bytes()
        return hashlib.sha256(self._headers + module).hexdigest()[:16]
