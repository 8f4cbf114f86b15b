"""A mutant: one small change of a source file, and what became of it; the sample that is tried, and entries of the list of equivalent ones.

The list names the mutants that were judged equivalent: below a heading with the file, lines "- `before` -> `after`: why", where
the after `*` stands for every change of the line. equivalent_files.py reads and writes it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNJUDGED = "not judged yet"  # the reason of an entry that the tool added: it explains nothing
DEFAULT_PLACES = (
    "lbagent/bpf/include/", "lbagent/sync/", "lbagent/targets/bpf/", "lbagent/resolve/", "lbagent/model/", "lbagent/maps/",
)  # fmt: skip
SOCKET_HEADERS = (
    "lbagent/bpf/include/hook/hook_sock.h", "lbagent/bpf/include/program/sock.h", "lbagent/bpf/include/service/sock_peer.h",
)  # fmt: skip

_HEADING = re.compile(r"^#+ `?(lbagent/\S+?)`?$")
_EQUIVALENT = re.compile(r"^- `(.+?)` -> `(.+?)`: (.+)$")


@dataclass(frozen=True)
class Mutant:
    """`position` numbers the mutants of a file, in the order of the text; `before` and `after` are lines of source."""

    path: str  # relative to the checkout
    position: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        """Return place and change as the report prints them."""
        return f"{self.path}:{self.line}\n    - {self.before}\n    + {self.after}"


class Fate(StrEnum):
    """What became of a mutant; only the last three let it live."""

    KILLED = "killed by a test"
    NOT_COMPILED = "refused by the compiler"
    REFUSED = "refused by the verifier"
    TIMED_OUT = "timed out"
    IMPORTED = "not tried: runs only while its module is imported"
    EXPLAINED = "survived, judged equivalent"
    UNREACHED = "survived: no test comes here"
    SURVIVED = "survived"


SURVIVORS = (Fate.UNREACHED, Fate.SURVIVED)


@dataclass(frozen=True)
class Outcome:
    """A mutant and its fate; `by` is the test that killed it, or why it was refused."""

    mutant: Mutant
    fate: Fate
    by: str = ""


def source_files(places: Sequence[str]) -> list[Path]:
    """Return the C headers and Python files below these places (folders, files, or patterns of paths in the checkout).

    Those of the socket programs are left out: packets do not reach them, and no packet test could detect a change.
    """
    headers = {*(ROOT / "lbagent" / "bpf" / "include").rglob("*.h")} - {ROOT / each for each in SOCKET_HEADERS}
    files = [*(ROOT / "lbagent").rglob("*.py"), *headers]
    return sorted(path for path in files if any(_is_at(str(path.relative_to(ROOT)), place) for place in places))


def _is_at(path: str, place: str) -> bool:
    place = place.removeprefix(f"{ROOT}/")
    return path == place or path.startswith(place.rstrip("/") + "/") or fnmatchcase(path, f"*{place}")


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return `count` of the mutants (0: all), the same ones for the same seed, in the order of the text."""
    chosen = random.Random(seed).sample(range(len(mutants)), count) if 0 < count < len(mutants) else range(len(mutants))
    return [mutants[index] for index in sorted(chosen)]


def one_line(text: str) -> str:
    """Return source text as one line."""
    return " ".join(text.split())


Entry = tuple[str, str, str]  # path, before, after


def equivalents(text: str, *, unjudged: bool = False) -> dict[Entry, str]:
    """Return the reasons from the text of the list; without `unjudged` only those that a developer wrote."""
    found, path = {}, ""
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            path = heading[1]
        elif (entry := _EQUIVALENT.match(line)) and path and (unjudged or entry[3] != UNJUDGED):
            found[path, entry[1], entry[2]] = entry[3]
    return found


def entry_of(before: str, after: str, why: str) -> str:
    """Return the line of an entry."""
    return f"- `{before}` -> `{after}`: {why}"


def stale(text: str, mutants: Sequence[Mutant]) -> list[str]:
    """Return the entries of the list about these files that no mutant has: their source has changed, and they explain nothing."""
    changes = _changes(mutants)
    return [
        f"{path}: `{before}` -> `{after}`"
        for path, before, after in equivalents(text, unjudged=True)
        if path in changes and (before, after) not in changes[path]
    ]


def without_stale(entries: dict[Entry, str], mutants: Sequence[Mutant]) -> dict[Entry, str]:
    """Return the entries whose file these mutants are not of, or whose change is one of them."""
    changes = _changes(mutants)
    return {entry: why for entry, why in entries.items() if entry[0] not in changes or entry[1:] in changes[entry[0]]}


def _changes(mutants: Sequence[Mutant]) -> dict[str, set[tuple[str, str]]]:
    """Return for each path the pairs of before and after that an entry may have."""
    found: dict[str, set[tuple[str, str]]] = {}
    for mutant in mutants:
        found.setdefault(mutant.path, set()).update(((mutant.before, mutant.after), (mutant.before, "*")))
    return found


def explained(outcomes: Iterable[Outcome], text: str) -> list[Outcome]:
    """Return the outcomes with the survivors that the list explains marked as such."""
    known = equivalents(text)
    return [_explained(outcome, known) for outcome in outcomes]


def _explained(outcome: Outcome, known: dict[tuple[str, str, str], str]) -> Outcome:
    mutant = outcome.mutant
    why = known.get((mutant.path, mutant.before, mutant.after)) or known.get((mutant.path, mutant.before, "*"))
    return Outcome(mutant, Fate.EXPLAINED, why) if why and outcome.fate in SURVIVORS else outcome
