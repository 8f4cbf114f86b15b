"""What makes a run of a part of the tests short, `make test-quick` above all: files that are not imported, fewer random examples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

QUICK_EXAMPLES = 25
FILE_MARKS = re.compile(r"^pytestmark = (\[.*?\]|.*?)$", re.MULTILINE | re.DOTALL)  # the markers of a whole file
LEFT_OUT = re.compile(r"not \w+(?: and not \w+)*")  # an expression of `-m` that only leaves markers out


def is_left_out(path: Path, expression: str) -> bool:
    """Return whether an expression of `-m` leaves out every test of a file, by the markers of the file."""
    if path.suffix != ".py" or not LEFT_OUT.fullmatch(expression):
        return False
    found = FILE_MARKS.search(path.read_text(encoding="utf-8"))
    marks = set(re.findall(r"pytest\.mark\.(\w+)", found[1])) if found else set()
    return not marks.isdisjoint(re.findall(r"not (\w+)", expression))


def files_of_run(config: pytest.Config, folder: Path) -> list[Path]:
    """Return the files below a folder that pytest imports; none where the command names files, folders or tests."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return []
    ignored = [Path(path).resolve() for path in config.option.ignore or ()]
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if (path.name.startswith("test_") or path.name == "conftest.py")
        and not any(path.is_relative_to(each) for each in ignored)
        and not is_left_out(path, config.option.markexpr)
    ]


def limit_examples(items: Iterable[pytest.Item], most: int) -> None:
    """Let Hypothesis try at most so many examples in each of these tests."""
    import hypothesis

    for item in items:
        function: Any = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
        settings = getattr(function, "_hypothesis_internal_use_settings", None)
        if settings is not None and settings.max_examples > most:
            function._hypothesis_internal_use_settings = hypothesis.settings(settings, max_examples=most)
