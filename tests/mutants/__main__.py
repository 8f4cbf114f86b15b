"""`make mutants`: changes the sources in small ways, one at a time, and prints the changes that no test notices.

Nothing in the checkout is touched: mutants live in the memory of child processes, and in headers under /tmp while they are compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mutants import c_mutants, py_mutants
from tests.mutants.children import kill_all
from tests.mutants.equivalent_files import FOLDER, read_list, write_list
from tests.mutants.mutant import (
    DEFAULT_PLACES,
    ROOT,
    SURVIVORS,
    Fate,
    Mutant,
    Outcome,
    explained,
    sample,
    source_files,
    stale,
)
from tests.mutants.runner import C_TESTS, Run, python_tests

DEFAULT_COUNT = 300
PROGRESS = 25  # mutants between two lines about how far it is
GOAL = 0.03  # share of survivors that nothing explains


def all_mutants(places: Sequence[str]) -> list[Mutant]:
    """Return every mutant of the files at these places."""
    files = source_files(places)
    trees = c_mutants.read_trees([path for path in files if path.suffix == ".h"])
    found = [mutant for path, tree in trees.items() for mutant in c_mutants.describe(tree, path)]
    for path in files:
        if path.suffix == ".py":
            found += py_mutants.describe(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    return found


def try_mutants(
    chosen: Sequence[Mutant],
    *,
    jobs: int,
    slow: bool,
    remember: str = "",
    believe: bool = False,
    patience_s: float = 0.0,
    verbose: bool = False,
) -> list[Outcome]:
    """Try each mutant with the tests that come there; survivors are printed as they are found.

    `believe`: those that the list explains count as explained, untried; one that lives costs every test that comes there.
    """
    outcomes: list[Outcome] = []
    if believe:
        listed = explained([Outcome(mutant, Fate.SURVIVED) for mutant in chosen], read_list())
        outcomes += [outcome for outcome in listed if outcome.fate is Fate.EXPLAINED]
    untried = {outcome.mutant for outcome in outcomes}
    numbered = dict(enumerate(mutant for mutant in chosen if mutant not in untried))
    if not numbered:
        return outcomes
    python = {number: mutant for number, mutant in numbered.items() if mutant.path.endswith(".py")}
    c = {number: mutant for number, mutant in numbered.items() if number not in python}
    numbers: dict[str, dict[int, int]] = {}
    for number, mutant in python.items():
        numbers.setdefault(mutant.path, {})[mutant.position] = number
    switch = py_mutants.Switch()
    py_mutants.Finder(switch, numbers).install()

    def report(outcome: Outcome) -> None:
        (shown,) = explained([outcome], read_list())
        outcomes.append(shown)
        if shown.fate in SURVIVORS:
            print(f"{shown.fate}\n  {shown.mutant}", flush=True)
        elif verbose:
            print(f"{shown.fate}: {shown.by}\n  {shown.mutant}", flush=True)
        if len(outcomes) % PROGRESS == 0:
            say(f"{len(outcomes)} of {len(chosen)}, {sum(found.fate in SURVIVORS for found in outcomes)} survived")

    run = Run(python, c, switch, report, say, jobs, slow, remember, patience_s)
    _set_up_hypothesis()
    folders = [*(C_TESTS if c else ()), *python_tests(python.values())]
    arguments = ["-q", "-s", "-p", "no:cacheprovider", "--disable-warnings", "-o", "timeout=0"]
    arguments += [str(ROOT / "tests" / name) for name in folders]
    try:
        code = pytest.main(arguments, plugins=[run])
    finally:
        kill_all()
    if code:
        raise SystemExit(f"pytest ended with {code!r}")
    return outcomes


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"== {text}", file=sys.stderr, flush=True)


def _set_up_hypothesis() -> None:
    """The same examples in each run, and none made smaller: a failure is all that counts."""
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutants")


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return the figures: how many of each fate, and the share of survivors that nothing explains."""
    counts = Counter(outcome.fate for outcome in outcomes)
    lines = [f"{counts[fate]:6} {fate}" for fate in Fate if counts[fate]]
    tried = len(outcomes) - counts[Fate.IMPORTED]
    share = 100 * _share_lost(outcomes)
    return "\n".join(
        [
            *lines,
            f"{tried:6} mutants in {seconds:.0f} s; {share:.1f} % survived unexplained (goal: under {100 * GOAL:.0f} %)",
        ]
    )


def _share_lost(outcomes: Sequence[Outcome]) -> float:
    """Return the share of survivors that nothing explains among the mutants that were tried."""
    tried = [outcome.fate for outcome in outcomes if outcome.fate is not Fate.IMPORTED]
    return sum(fate in SURVIVORS for fate in tried) / max(1, len(tried))


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Yield a folder for all temporary files: what a killed child leaves there, or mounts there, goes with it."""
    with tempfile.TemporaryDirectory(prefix="lbagent-mutants-") as folder:
        try:
            yield folder
        finally:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
            below = [at for at in (line.split()[1] for line in mounts) if at.startswith(f"{folder}/")]
            for at in reversed(below):
                subprocess.run(["umount", "-l", at], check=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of `python -m tests.mutants`."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="small changes that the tests should notice"
    )
    parser.add_argument(
        "places",
        nargs="*",
        default=DEFAULT_PLACES,
        help="folders, files or patterns (default: the headers, sync, targets/bpf, resolve, model, maps)",
    )
    parser.add_argument(
        "-n", "--count", type=int, default=DEFAULT_COUNT, help=f"how many (default: {DEFAULT_COUNT}; 0: all)"
    )
    parser.add_argument("--seed", type=int, default=1, help="which ones: the same for the same seed and sources")
    parser.add_argument("--jobs", type=int, default=2, help="tried side by side")
    parser.add_argument("--slow", action="store_true", help="with the slow tests too: fuzz, races")
    parser.add_argument(
        "--remember",
        default="",
        metavar="FILE",
        help="keep what each packet test reaches, for runs with the same headers",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="processor time for a mutant: one that lives so long counts as a survivor (default: all tests)",
    )
    parser.add_argument("--believe", action="store_true", help="do not try what tests/mutants/equivalent explains")
    parser.add_argument(
        "--write",
        action="store_true",
        help="bring tests/mutants/equivalent up to date: stale entries go, survivors are added, to be judged",
    )
    parser.add_argument(
        "--prune", action="store_true", help="remove stale entries from tests/mutants/equivalent, try none"
    )
    parser.add_argument("--verbose", action="store_true", help="name the test that killed each")
    parser.add_argument("--list", action="store_true", help="print them and try none")
    options = parser.parse_args(arguments)
    every = all_mutants(options.places)
    chosen = sample(every, options.count, options.seed)
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    if options.prune:
        for entry in stale(read_list(), every):
            print(f"removed: {entry}")
        write_list(every, ())
        return 0
    print(f"{len(chosen)} of {len(every)} mutants, seed {options.seed}", flush=True)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with scratch_folder() as folder:
        tempfile.tempdir = folder
        outcomes = try_mutants(
            chosen,
            jobs=options.jobs,
            slow=options.slow,
            remember=options.remember,
            believe=options.believe,
            patience_s=options.patience,
            verbose=options.verbose,
        )
    for entry in stale(read_list(), every):
        print(f"{FOLDER.relative_to(ROOT)} explains what is not there any more: {entry}")
    if options.write:
        for path in write_list(every, outcomes):
            print(f"written: {path.relative_to(ROOT)}")
    print(summary(outcomes, time.monotonic() - began))
    return 1 if _share_lost(outcomes) >= GOAL else 0


if __name__ == "__main__":
    sys.exit(main())
