"""The workers of a run share the work of rewriting asserts.

pytest rewrites the asserts of each test file, two thirds of the time that the first collection takes, and keeps the result beside the file.
Each worker of xdist collects all files in the same order, so each would rewrite them all. Here each rewrites a part first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite


def rewrite_part(session: pytest.Session, files: Sequence[Path]) -> None:
    """In a worker: rewrite its part of the files, those whose result is missing or old."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    if not worker or sys.dont_write_bytecode:
        return
    number = int(worker["workerid"].removeprefix("gw"))
    for path in files[number :: worker["workercount"]]:
        rewrite_file(path, session.config)


def rewrite_file(path: Path, config: pytest.Config) -> None:
    """Write what pytest would write when it imports the file; a file that cannot be read or parsed is left to pytest."""
    folder = rewrite.get_cache_dir(path)
    cached = folder / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, cached) is not None or not rewrite.try_makedirs(folder):
        return
    try:
        mark, code = rewrite._rewrite_test(path, config)
    except (OSError, SyntaxError, ValueError):
        return
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, mark, cached)
