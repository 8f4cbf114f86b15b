"""The results of the suite, compared with the list of tests that pass with kube-proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# These read the kernel's connection tracking, which has kube-proxy's connections; the flow table has its own tests.
NOT_APPLICABLE = frozenset({"[sig-network] KubeProxy should set TCP CLOSE_WAIT timeout [Privileged]"})
LINE = re.compile(r"(PASS|FAIL)\s+(?:(\d+) s  )?(.+)")
FIGURES = re.compile(r"\d+ passed, \d+ failed")


def baseline(text: str) -> list[str]:
    """Return the titles of a list `SECONDS<TAB>TITLE` that apply to lbagent."""
    lines = (line.partition("\t")[2] for line in text.splitlines() if not line.startswith("#"))
    return [title for title in lines if title and title not in NOT_APPLICABLE]


@dataclass
class Results:
    """Tests by title, and the expected results."""

    expected: list[str]
    seconds: dict[str, int] = field(default_factory=dict)  # of each test that ran, from the suite
    failed: dict[str, str] = field(default_factory=dict)  # title -> the suite's message
    complete: bool = False  # the suite is complete

    @property
    def passed(self) -> list[str]:
        return [title for title in self.expected if title in self.seconds and title not in self.failed]

    @property
    def missing(self) -> list[str]:
        """Expected tests that did not run."""
        return [title for title in self.expected if title not in self.seconds]

    @property
    def ok(self) -> bool:
        return self.complete and bool(self.expected) and not self.missing and not self.failed

    def text(self) -> str:
        """Return the summary at the end of a run."""
        lines = [f"FAIL {title}\n     {why}".rstrip() for title, why in sorted(self.failed.items())]
        lines += [f"DID NOT RUN {title}" for title in self.missing]
        if not self.complete:
            lines.append("the suite did not come to its end")
        return "\n".join([*lines, f"{len(self.passed)} of {len(self.expected)} passed"])


def read(text: str, expected: list[str]) -> Results:
    """Read the lines of the suite: `PASS SECONDS s  TITLE`, `FAIL ...` and, below it, why."""
    results, last = Results(expected), ""
    for line in text.splitlines():
        if FIGURES.fullmatch(line):
            results.complete = True
        elif found := LINE.fullmatch(line):
            word, seconds, last = found.groups()
            results.seconds[last] = int(seconds or 0)
            if word == "FAIL" and last not in NOT_APPLICABLE:
                results.failed[last] = ""
        elif line.startswith(" ") and last in results.failed:
            results.failed[last] = line.strip()
        else:
            last = ""
    return results
