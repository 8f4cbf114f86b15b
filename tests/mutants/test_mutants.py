"""The tool that changes the sources: what it changes, and that a text with switches is the text it was while all are off."""

from __future__ import annotations

import ast
import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mutants import c_mutants, py_mutants, trial
from tests.mutants.__main__ import scratch_folder, summary, try_mutants
from tests.mutants.c_tree import Tree, parse, type_names
from tests.mutants.children import Child
from tests.mutants.equivalent_files import FOLDER, list_file, read_list, write_list
from tests.mutants.mutant import (
    ROOT,
    SOCKET_HEADERS,
    SURVIVORS,
    UNJUDGED,
    Fate,
    Mutant,
    Outcome,
    equivalents,
    explained,
    sample,
    source_files,
    stale,
)
from tests.mutants.runner import Run
from tests.mutants.trial import Result, Surveys

C = """\
#define LIMIT 5 /* of something */
AI u64 first(const u8 *p, u64 n)
{
	u64 sum = p[0] + (u64)n;

	if (n > LIMIT && !sum)
		return 0;
	sum |= 4;
	MB();
	store(p, sum);
	return LIKELY(sum == n) ? sum : ~n;
}
"""
PYTHON = '''\
LIMIT = 5


def first(values, n=1):
    """Return something of 1."""
    out = []
    for value in values:
        if value < n and value not in out:
            log.info("a value", extra={"value": 1})
            out.append(value + 1)
    return out
'''


def tree_of(text: str) -> Tree:
    return parse(text, type_names([text]))


def test_changes_of_c() -> None:
    found = {(mutant.before, mutant.after) for mutant in c_mutants.describe(tree_of(C), "x.h")}
    assert found == {
        ("#define LIMIT 5 /* of something */", "#define LIMIT 6 /* of something */"),
        ("u64 sum = p[0] + (u64)n;", "u64 sum = p[1] + (u64)n;"),
        ("u64 sum = p[0] + (u64)n;", "u64 sum = p[0] - (u64)n;"),
        ("if (n > LIMIT && !sum)", "if (((n > LIMIT && !sum) && 0))"),
        ("if (n > LIMIT && !sum)", "if (((n > LIMIT && !sum) || 1))"),
        ("if (n > LIMIT && !sum)", "if (((n > LIMIT) || 1) && !sum)"),
        ("if (n > LIMIT && !sum)", "if (n > LIMIT && ((!sum) || 1))"),
        ("if (n > LIMIT && !sum)", "if (n >= LIMIT && !sum)"),
        ("return 0;", "return 1;"),
        ("sum |= 4;", "sum = 4;"),
        ("sum |= 4;", "sum |= 5;"),
        ("sum |= 4;", ";"),
        ("store(p, sum);", ";"),
        ("return LIKELY(sum == n) ? sum : ~n;", "return LIKELY(((sum == n) || 1)) ? sum : ~n;"),
        ("return LIKELY(sum == n) ? sum : ~n;", "return LIKELY(((sum == n) && 0)) ? sum : ~n;"),
        ("return LIKELY(sum == n) ? sum : ~n;", "return LIKELY(sum == n) ? sum : n;"),
    }


def test_every_header_is_read_and_keeps_its_lines() -> None:
    """A function that could not be read would have no mutants, without a message."""
    trees = c_mutants.read_trees(source_files(["lbagent/bpf/include/"]))
    assert sum(len(c_mutants.edits(tree)) for tree in trees.values()) > 4000
    for path, tree in trees.items():
        numbers = {number: number for number in range(len(c_mutants.edits(tree)))}
        for text in (c_mutants.batch_text(tree, numbers), c_mutants.marked_text(tree, 0)):
            assert text.count("\n") == tree.text.count("\n"), path
        assert c_mutants.batch_text(tree, {}) == tree.text


def test_headers_of_socket_programs_are_left_out() -> None:
    """They exist, and what is left is every other header."""
    names = {str(path.relative_to(ROOT)) for path in source_files(["lbagent/bpf/include/"])}
    every = {str(path.relative_to(ROOT)) for path in (ROOT / "lbagent/bpf/include").rglob("*.h")}
    assert every - names == set(SOCKET_HEADERS)


def test_every_mutant_of_c_is_in_the_text_once() -> None:
    tree = tree_of(C)
    numbers = {position: 100 + position for position in range(len(c_mutants.edits(tree)))}
    text = c_mutants.batch_text(tree, numbers)
    assert [text.count(f"MUTANT({number})") for number in numbers.values()] == [1] * len(numbers)
    alone = [c_mutants.mutated_text(tree, position) for position in numbers]
    assert len({*alone, C}) == len(numbers) + 1


def test_places_of_c() -> None:
    """A mutant belongs to the mark in front of it, one in a declaration to the first one of its block."""
    tree = tree_of(C)
    marked = c_mutants.marked_text(tree, 7)
    assert "{ PLACE(7); if (n > LIMIT" in marked
    places = {
        mutant.line: c_mutants.place_before(tree, 7, mutant.position) for mutant in c_mutants.describe(tree, "x.h")
    }
    assert places[1] is None
    assert places[4] == places[6] == 7
    assert f"{{ PLACE({places[7]}); return 0; }}" in marked
    assert f"{{ PLACE({places[8]}); sum |= 4; }}" in marked
    assert places[11] == places[8]


FAMILIES = """AI u64 words(u64 n)
{
	u64 sum = n + 1;

#if LB_FAMILY == 4
	sum += 2;
	return sum;
#else
	u64 other = sum + 3;
	sum += 4;
	return sum + other;
#endif
}
"""


@pytest.mark.parametrize("coarse", [False, True])
def test_places_of_two_families(*, coarse: bool) -> None:
    """Code that only one of them compiles is no evidence for the other: with tests of IPv4 only, each mutant of IPv6 would live."""
    tree = dataclasses.replace(tree_of(FAMILIES), coarse=coarse)
    marked = c_mutants.marked_text(tree, 0)
    places = {m.line: c_mutants.place_before(tree, 0, m.position) for m in c_mutants.describe(tree, "x.h")}
    if coarse:
        assert marked == FAMILIES
        assert set(places.values()) == {None}
    else:
        assert ("{ PLACE(0); sum += 2;" in marked, "{ PLACE(1); sum += 4;" in marked) == (True, True)
        assert (places[3], places[6], places[9], places[10], places[11]) == (None, 0, 1, 1, 1)


def test_changes_of_python() -> None:
    found = {(mutant.before, mutant.after) for mutant in py_mutants.describe(PYTHON, "x.py")}
    condition = "if value < n and value not in out:"
    assert found == {
        (condition, "if True:"),
        (condition, "if False:"),
        (condition, "if value < n:"),
        (condition, "if value not in out:"),
        (condition, "if value <= n and value not in out:"),
        (condition, "if value >= n and value not in out:"),
        (condition, "if value < n and value in out:"),
        ("out.append(value + 1)", "pass"),
        ("out.append(value + 1)", "out.append(value - 1)"),
        ("out.append(value + 1)", "out.append(value + 2)"),
        ("return out", "return None"),
    }


def run_python(active: int) -> object:
    switch = py_mutants.Switch()
    switch.active = active
    mutants = py_mutants.describe(PYTHON, "x.py")
    numbers = {mutant.position: mutant.position for mutant in mutants}
    names: dict[str, object] = {py_mutants.SWITCH: switch, "log": __import__("logging").getLogger("mutants")}
    exec(compile(py_mutants.with_switches(PYTHON, numbers), "x.py", "exec"), names)
    return names["first"]([0, 1, 2, 0], 2)


def test_switches_of_python() -> None:
    """With all switches off the module is what it was, with one on it is that mutant."""
    assert run_python(-1) == [1, 1]
    by_after = {mutant.after: run_python(mutant.position) for mutant in py_mutants.describe(PYTHON, "x.py")}
    assert by_after["if True:"] == [1, 2, 3, 1]
    assert by_after["if False:"] == []
    assert by_after["out.append(value + 2)"] == [2, 3, 2]
    assert by_after["return None"] is None


def test_every_module_can_have_switches() -> None:
    for path in source_files(["lbagent/sync/", "lbagent/resolve/"]):
        text = path.read_text(encoding="utf-8")
        count = len(py_mutants.describe(text, str(path.relative_to(ROOT))))
        made = py_mutants.with_switches(text, {number: number for number in range(count)})
        compile(made, str(path), "exec", dont_inherit=True)
        assert ast.unparse(py_mutants.with_switches(text, {})) == ast.unparse(ast.parse(text))


def test_a_seed_is_a_sample() -> None:
    every = [Mutant("x.py", number, 1, "a", "b") for number in range(1000)]
    assert sample(every, 20, 5) == sample(every, 20, 5)
    assert sample(every, 20, 5) != sample(every, 20, 6)
    assert len(set(sample(every, 20, 5))) == 20
    assert sample(every, 0, 5) == sample(every, 5000, 5) == every


def test_equivalent_mutants_are_explained() -> None:
    text = "# Tests\n### `lbagent/sync/x.py`\n- `if a || b:` -> `if a:`: b is always so.\n"
    assert equivalents(text) == {("lbagent/sync/x.py", "if a || b:", "if a:"): "b is always so."}
    mutant = Mutant("lbagent/sync/x.py", 1, 9, "if a || b:", "if a:")
    (outcome,) = explained([Outcome(mutant, Fate.SURVIVED)], text)
    assert (outcome.fate, outcome.by) == (Fate.EXPLAINED, "b is always so.")
    (killed,) = explained([Outcome(mutant, Fate.KILLED, "a test")], text)
    assert killed.fate is Fate.KILLED
    (other,) = explained([Outcome(mutant, Fate.SURVIVED)], "")
    assert other.fate in SURVIVORS
    (whole_line,) = explained([Outcome(mutant, Fate.UNREACHED)], text.replace("`if a:`", "`*`"))
    assert whole_line.fate is Fate.EXPLAINED


def test_entries_that_explain_nothing_any_more_are_found() -> None:
    text = "### `lbagent/x.py`\n- `a` -> `b`: one.\n- `a` -> `c`: two.\n- `d` -> `*`: three.\n- `e` -> `*`: four.\n"
    mutants = [Mutant("lbagent/x.py", 0, 1, "a", "b"), Mutant("lbagent/x.py", 1, 2, "e", "f")]
    assert stale(text, mutants) == ["lbagent/x.py: `a` -> `c`", "lbagent/x.py: `d` -> `*`"]
    assert stale(text, [Mutant("lbagent/y.py", 0, 1, "a", "b")]) == [], "of another file"


def test_the_list_has_a_file_for_each_source_and_a_reason_for_each_entry() -> None:
    """When this fails: move the file to where its source went, judge what `--write` added."""
    listed = equivalents(read_list(), unjudged=True)
    assert listed
    assert [path for path, _, _ in listed if not (ROOT / path).is_file()] == []
    assert {list_file(path) for path, _, _ in listed} == set(FOLDER.rglob("*.md"))
    for path in FOLDER.rglob("*.md"):
        heading, blank, *entries = path.read_text(encoding="utf-8").splitlines()
        assert (list_file(heading.removeprefix("# ")), blank) == (path, "")
        assert len(entries) == len(equivalents(f"{heading}\n" + "\n".join(entries))), (
            f"{path}: an entry without a reason"
        )


def test_the_tool_writes_the_list(tmp_path: Path) -> None:
    """What is stale goes, a survivor is added and explains nothing until it is judged, other sources' files stay."""
    plan, other, gone = ("lbagent/targets/bpf/plan.py", "lbagent/model/state.py", "lbagent/gone.py")
    for source, text in (
        (plan, "- `a` -> `b`: one.\n- `x` -> `y`: two.\n"),
        (other, "- `m` -> `n`: three.\n"),
        (gone, "- `p` -> `q`: four.\n"),
    ):
        file = list_file(source, tmp_path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {source}\n\n{text}")
    known, survivor = Mutant(plan, 0, 1, "a", "b"), Mutant(plan, 1, 2, "c", "d")
    outcomes = [Outcome(known, Fate.EXPLAINED), Outcome(survivor, Fate.SURVIVED)]
    assert set(write_list([known, survivor], outcomes, tmp_path)) == {
        list_file(plan, tmp_path),
        list_file(gone, tmp_path),
    }
    assert list_file(plan, tmp_path).read_text() == f"# {plan}\n\n- `a` -> `b`: one.\n- `c` -> `d`: {UNJUDGED}\n"
    assert not list_file(gone, tmp_path).exists()
    assert write_list([known, survivor], outcomes, tmp_path) == []
    assert equivalents(read_list(tmp_path)) == {(plan, "a", "b"): "one.", (other, "m", "n"): "three."}


def test_what_runs_only_while_a_module_is_imported_is_not_tried() -> None:
    """No test could notice it: it ran before the first one."""
    outcomes: list[Outcome] = []
    mutants = {number: Mutant("lbagent/x.py", number, 1, "a", "b") for number in range(2)}
    run = Run(mutants, {}, py_mutants.Switch(), outcomes.append, str)
    run._try_python(Surveys({}), frozenset((0,)))
    assert [outcome.fate for outcome in outcomes] == [Fate.IMPORTED, Fate.UNREACHED]
    assert "1 mutants in 3 s; 100.0 % survived" in summary(outcomes, 3.0)


def busy(_: object) -> None:
    while True:
        pass


@pytest.mark.long
@pytest.mark.parametrize(("work", "what"), [
    (lambda: 7, (7, "", False)),
    (lambda: 1 // 0, (None, "ZeroDivisionError", False)),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), (None, "status", False)),
    (lambda: time.sleep(60), (None, "status", True)),
    (lambda: busy(signal.setitimer(signal.ITIMER_PROF, 0.05)), (None, "status", True)),
])  # fmt: skip
def test_how_a_child_ends(work, what) -> None:
    """A result, an exception, a signal, the deadline, its processor time."""
    ended = Child.start(work, 5).wait()
    result, said, timed_out = what
    assert (ended.result, ended.timed_out) == (result, timed_out)
    assert said in ended.error


@pytest.mark.root
def test_what_a_killed_child_mounted_goes_with_its_files() -> None:
    with scratch_folder() as folder:
        at = Path(folder) / "a" / "bpf"
        at.mkdir(parents=True)
        for _ in range(2):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(at)], check=True)
        (at / "file").touch()
    assert not Path(folder).exists()
    assert folder not in Path("/proc/self/mounts").read_text(encoding="utf-8")


ITEMS = [SimpleNamespace(nodeid=name) for name in ("a", "b", "c")]
REFUSED = "lbagent.errors.VerifierError: the kernel's verifier refused program x"


@pytest.mark.parametrize(("errors", "result"), [
    ((None, None, None), Result()),
    ((None, "assert 1 == 2", None), Result("b", "assert 1 == 2")),
    ((REFUSED, REFUSED, None), Result(refused="a")),
    ((REFUSED, None, "assert 1 == 2"), Result("c", "assert 1 == 2")),
])  # fmt: skip
def test_programs_that_are_refused_kill_no_mutant(monkeypatch, errors, result) -> None:
    """A test that loads its own programs gives no result then: other mutants of the build may be the reason."""
    told = iter(errors)
    monkeypatch.setattr(trial, "_run", lambda *_: next(told))
    monkeypatch.setattr(trial, "_end", lambda *_: None)
    assert trial.attempt(ITEMS, lambda _: 60.0) == result


def test_patience_ends(monkeypatch) -> None:
    """The tests that are left are not begun, and the mutant counts as one that lives."""
    begun = []
    spent = iter((1.0, 4.0, 6.0))
    monkeypatch.setattr(trial, "_run", lambda item, _: begun.append(item.nodeid))
    monkeypatch.setattr(trial, "_end", lambda *_: None)
    monkeypatch.setattr(trial.time, "process_time", lambda: next(spent))
    assert trial.attempt(ITEMS, lambda _: 60.0, patience_s=5.0) == Result()
    assert begun == ["a", "b"]


def test_what_is_listed_may_be_believed() -> None:
    """Such a mutant is not tried, and counts as explained."""
    (path, before, after), why = next(iter(equivalents(read_list()).items()))
    mutant = Mutant(path, 0, 1, before, after)
    assert try_mutants([mutant], jobs=1, slow=False, believe=True) == [Outcome(mutant, Fate.EXPLAINED, why)]
