"""The tree: file names, the place of each test, and that comments name existing modules."""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "lbagent", ROOT / "tests"
STUB = PACKAGE / "bpf" / "stub"  # with the names of the kernel's own headers
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for suffix in ("*.py", "*.h", "*.c")
    for path in sorted(PACKAGE.rglob(suffix))
    if STUB not in path.parents
}

SHARED_NAMES = {"__init__.py", "__main__.py", "source.py", "provider.py"}  # the folder distinguishes them
WHOLE = {
    "packet",
    "e2e",
    "chaos",
    "lab",
    "scenario",
    "docs",
    "packaging",
    "mutants",
    "oracle",
    "kube_api",
    "conformance",
}  # tests of the whole system, and their helpers

MENTION = re.compile(r"(?<![\w.*{<-])(?:[\w.-]+/)*\w[\w-]*\.(?:py|h|c)\b(?![(\w*])")
PLACEHOLDER = re.compile(r"(?:^|[_/])[A-Z]{2,}(?:[_./]|$)")  # sources/NAME/source.py, hook_NAME.h
FOREIGN = re.compile(
    r"(?:^|/)(?:include/uapi|linux|kernel/bpf|net/core|bpf/lib)/"  # the kernel's, and Cilium's
    r"|^(?:version|libbcc)\.py$|^x\.h$"  # BCC's; an example
)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_file_name_is_there_once() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        if path.name not in SHARED_NAMES and path.parent != PACKAGE / "cli" / "verbs":
            places[path.name].append(relative(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_tests_mirror_the_package() -> None:
    """tests/targets/bpf/test_plan.py tests lbagent/targets/bpf; of the files directly in tests/, only tests of
    lbagent/*.py, this file, the search for prose and the tests of helpers are allowed."""
    odd = []
    for path in TESTS.rglob("test_*.py"):
        folder = path.parent.relative_to(TESTS)
        if folder.parts and folder.parts[0] not in WHOLE and not (PACKAGE / folder).is_dir():
            odd.append(relative(path))
    assert odd == []
    of_modules = {
        path.name for path in TESTS.glob("test_*.py") if (PACKAGE / path.name.removeprefix("test_")).is_file()
    }
    others = {path.name for path in TESTS.glob("test_*.py")} - of_modules
    assert others == {Path(__file__).name, "test_prose.py", "test_fetch.py", "test_short_runs.py", "test_turns.py"}


def test_a_module_has_a_docstring() -> None:
    modules = [path for path in SOURCES if path.suffix == ".py"]  # also a package: its contents and limits
    assert [relative(path) for path in modules if not re.match(r'(#!.*\n)?"""', SOURCES[path])] == []
    headers = [path for path in SOURCES if path.suffix == ".h"]
    assert [relative(path) for path in headers if "/*" not in SOURCES[path][:400]] == []


def missing(text: str, there: frozenset[str]) -> list[str]:
    """Return the files in a text that are not in `there` (ends of paths)."""
    named = {found for found in MENTION.findall(text) if not (PLACEHOLDER.search(found) or FOREIGN.search(found))}
    return sorted(named - there)


@pytest.fixture(scope="module")
def there() -> frozenset[str]:
    """Every end of a path by which a comment may name a file of the project: plan.py, target/plan.py, ..."""
    files = [*SOURCES, *TESTS.rglob("*.py"), *(ROOT / "bench").rglob("*.[pch]*"), *ROOT.glob("*.py")]
    parts = [path.relative_to(ROOT).parts for path in files]
    return frozenset("/".join(each[at:]) for each in parts for at in range(len(each)))


def test_comments_name_files_that_exist(there: frozenset[str]) -> None:
    found = {relative(path): missing(text, there) for path, text in SOURCES.items()}
    assert {name: files for name, files in found.items() if files} == {}


def test_a_file_that_is_gone_is_found(there: frozenset[str]) -> None:
    text = '"""As targets/bpf/plan.py says, and gone/plan.py; see nowhere.h, linux/bpf.h and sync/NAME_target.py."""'
    assert missing(text, there) == ["gone/plan.py", "nowhere.h"]


def test_every_test_file_is_collected(pytestconfig: pytest.Config) -> None:
    """A run without file names collects tests in all folders, with any names."""
    left_out = pytestconfig.getini("norecursedirs")
    folders = {part for path in TESTS.rglob("test_*.py") for part in path.relative_to(ROOT).parts[:-1]}
    assert not [folder for folder in folders for pattern in left_out if fnmatch(folder, pattern)]
