"""A pytest plugin: once the tests are collected it tries mutants with them, each in a forked child, and runs no test itself.

Mutants of Python are in the imported modules already, behind their switch (py_mutants.py). Those of C are compiled in batches (c_build.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.mutants.children import Child, Ended, Pool
from tests.mutants.mutant import ROOT, Fate, Mutant, Outcome
from tests.mutants.py_mutants import Switch
from tests.mutants.trial import Result, Survey, Surveys, Take, attempt, survey
from tests.short_runs import limit_examples

MAX_EXAMPLES = 20  # of Hypothesis, in a test: a mutant that lives costs all of them
SURVEY_S = 1800  # at most for all tests
C_TESTS = ("packet",)
SLOW_MODULES = {"test_race.py", "test_race_points.py", "test_fuzz.py"}  # the second compiles headers of its own
# the tests of a package, and of those that are built on it
PYTHON_TESTS = {
    "sync": ("sync", "targets", "scenario"),
    "targets": ("targets", "sync", "scenario"),
    "resolve": ("resolve", "sync", "scenario"),
    "maps": ("maps", "targets", "sync", "scenario"),
    "model": ("model", "maps", "resolve", "targets", "sync", "scenario"),
}
Report = Callable[[Outcome], None]


def python_tests(mutants: Iterable[Mutant]) -> list[str]:
    """Return the folders of tests that try these mutants."""
    every = PYTHON_TESTS["model"]
    return sorted({name for mutant in mutants for name in PYTHON_TESTS.get(mutant.path.split("/")[1], every)})


@dataclass
class Run:
    """The plugin. Switches have the numbers of `python` and `c`."""

    python: Mapping[int, Mutant]
    c: Mapping[int, Mutant]
    switch: Switch
    report: Report
    say: Callable[[str], None]
    jobs: int = os.cpu_count() or 1
    slow: bool = False
    remember: str = ""
    patience_s: float = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants. Returns True: nothing is left to run."""
        if self.python:
            imported = self._take_switches()  # before any test: what a module does when it is imported
            items = self._items(session, python_tests(self.python.values()))
            limit_examples(items, MAX_EXAMPLES)
            self._try_python(self.surveyed("Python", items, lambda: self._take_switches), imported)
        if self.c:
            from tests.mutants.c_runner import CRun

            CRun(self, self._items(session, C_TESTS)).run(self.c)
        return True

    def _items(self, session: pytest.Session, folders: Sequence[str]) -> list[pytest.Item]:
        wanted = [ROOT / "tests" / name for name in folders]
        found = [item for item in session.items if any(folder in Path(item.path).parents for folder in wanted)]
        return [item for item in found if self.slow or not (_is_slow(item) or Path(item.path).name in SLOW_MODULES)]

    def _take_switches(self) -> frozenset[int]:
        reached = frozenset(self.switch.reached)
        self.switch.reached.clear()
        return reached

    def surveyed(
        self,
        what: str,
        items: Sequence[pytest.Item],
        prepare: Callable[[], Take],
        known: Mapping[str, Survey] = MappingProxyType({}),
        note: Callable[[str, Survey], None] = lambda *_: None,
    ) -> Surveys:
        """Run the tests without a mutant, except known ones; `prepare` runs in each child, before its tests."""
        surveys = Surveys({item.nodeid: item for item in items}, dict(known))
        pool = Pool(self.jobs)

        def done(ended: Ended, _: int) -> None:
            if ended.result is None:
                raise RuntimeError(f"the tests could not be run without a mutant:\n{ended.error}")
            surveys.add(ended.result)

        for part in _shares([item for item in items if item.nodeid not in known], self.jobs):
            pool.add(lambda _, part=part: Child.start(lambda: survey(part, prepare(), note), SURVEY_S), done)
        pool.finish()
        self.say(f"{what}: {len(surveys.found) - len(surveys.failing)} tests")
        for name in surveys.failing:
            self.say(f"left out, as it fails without a mutant: {name}")
        return surveys

    def _try_python(self, surveys: Surveys, imported: frozenset[int]) -> None:
        pool = Pool(self.jobs)
        for number, mutant in self.python.items():
            names = surveys.tests_of(mutant.path, number)
            if not names:
                self.report(Outcome(mutant, Fate.IMPORTED if number in imported else Fate.UNREACHED))
                continue
            pool.add(
                lambda _, names=names, number=number: self.start(
                    surveys, names, lambda: setattr(self.switch, "active", number), memory=True
                ),
                lambda ended, _, mutant=mutant: self.finished(surveys, mutant, ended),
            )
        pool.finish()

    def start(
        self, surveys: Surveys, names: Sequence[str], prepare: Callable[[], object], *, memory: bool = False
    ) -> Child:
        """Start a child that runs these tests with a mutant that `prepare` turns on."""

        def work() -> Result:
            prepare()
            return attempt([surveys.items[name] for name in names], surveys.limit, self.patience_s)

        return Child.start(work, surveys.seconds(names), memory=memory)

    def finished(self, surveys: Surveys, mutant: Mutant, ended: Ended) -> None:
        """Report what became of a mutant."""
        if ended.timed_out:
            self.report(Outcome(mutant, Fate.TIMED_OUT))
        elif "VerifierError" in ended.error:
            self.report(Outcome(mutant, Fate.REFUSED))
        elif ended.result is None:  # the process broke: out of memory, a crash
            self.report(Outcome(mutant, Fate.KILLED, ended.error.strip().splitlines()[-1]))
        elif ended.result.failed:
            surveys.killed(mutant.path, ended.result.failed)
            self.report(Outcome(mutant, Fate.KILLED, ended.result.failed))
        elif ended.result.refused:  # in a build of its own, or Python
            self.report(Outcome(mutant, Fate.REFUSED, ended.result.refused))
        else:
            self.report(Outcome(mutant, Fate.SURVIVED))


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _shares(items: Sequence[pytest.Item], count: int) -> Iterable[list[pytest.Item]]:
    """Split the tests by modules, so that their fixtures are made once."""
    shares: list[list[pytest.Item]] = [[] for _ in range(count)]
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    for group in sorted(modules.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [share for share in shares if share]
