"""Files that a run leaves out are not imported; the workers of a run share the rewriting of asserts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests import rewritten_asserts
from tests.short_runs import is_left_out

QUICK = "not root and not bpf and not slow and not long"


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        ("pytestmark = pytest.mark.root\n", QUICK, True),
        ("pytestmark = [pytest.mark.early, pytest.mark.slow]\n", QUICK, True),
        ("pytestmark = [\n    pytest.mark.early,\n    pytest.mark.bpf,\n]\n", QUICK, True),
        ("pytestmark = [pytest.mark.early]\n\n@pytest.mark.root\ndef test_a(): ...\n", QUICK, False),
        ("@pytest.mark.root\ndef test_a(): ...\n", QUICK, False),
        ("pytestmark = pytest.mark.root\n", "not slow", False),
        ("pytestmark = pytest.mark.root\n", "root", False),
        ("pytestmark = pytest.mark.root\n", "not root or slow", False),
        ("pytestmark = pytest.mark.root\n", "", False),
    ],
)
def test_a_file_is_left_out_by_its_markers(tmp_path: Path, text: str, expression: str, expected: bool) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(text)
    assert is_left_out(path, expression) is expected


def test_pytest_takes_what_was_written(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "test_a.py"
    path.write_text("def test_a():\n    assert 1 == 1\n")
    rewritten_asserts.rewrite_file(path, request.config)
    (written,) = (tmp_path / "__pycache__").iterdir()
    assert written.name.endswith(rewrite.PYC_TAIL)
    before = written.stat().st_mtime_ns
    rewritten_asserts.rewrite_file(path, request.config)
    assert written.stat().st_mtime_ns == before
    spec = importlib.util.spec_from_file_location(
        "test_a", path, loader=request.config.stash[rewrite.assertstate_key].hook
    )
    assert spec
    assert spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    path.write_text("def test_a(:\n")
    rewritten_asserts.rewrite_file(path, request.config)  # pytest itself reports the error


def test_each_worker_writes_its_part(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(rewritten_asserts, "rewrite_file", lambda path, _config: written.append(path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = [tmp_path / f"test_{number}.py" for number in range(5)]
    session = request.session
    for number in range(2):
        monkeypatch.setattr(session.config, "workerinput", {"workerid": f"gw{number}", "workercount": 2}, raising=False)
        rewritten_asserts.rewrite_part(session, files)
    assert sorted(written) == files
