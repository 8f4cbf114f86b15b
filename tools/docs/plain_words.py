"""`make lint`: phrases that the documents do not use, each with what to write instead. `python -m tools.docs.plain_words`.

ALLOWED has what was there when the check came: a file may have at most so many. Lower a number, or remove the line, when you rewrite a sentence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MACHINES = r"(?:agent|kernel|program|node|server|router|leader|controller|source|target|map|entry|file|backend|device|host|switch|table|loop|check)s?"
PHRASES = {
    rf"\b{MACHINES} (?:says?|said|knows?|knew|asks?|hears?|heard|wish(?:es)?|wants?)\b": "a machine reads, returns, requests, rejects, has",
    r"\banew\b": "again; from the start",
    r"\bfor ever\b": "without limit",
    r"\b(?:is|are) asked (?:for|again)\b": "the agent requests; retries",
    r"\bhears?\b": "receives; reads",
    r"\bis another than\b": "differs from",
    r"\bas far as it goes\b": "say which part",
    r"\bbut for\b": "except",
    r"\bwhat it is made of\b": "its parts",
    r"\bthere it is\b": "it is there",
    r"\bwithout a word\b": "without an error",
    r"\bha(?:s|ve) the word\b": "decides",
    r"\b(?:somebody|nobody|whoever)\b": "name it: another process, no client",
    r"\b(?:is|are) told\b": "receives; is configured",
    r"\b(?:is|are) said\b": "is reported; is printed",
    r"\bsays? nothing\b": "sends no data; has no effect",
    r"\bgoes? on\b": "continues",
}
ALLOWED: Mapping[str, int] = {}


def documents() -> list[Path]:
    """Return the files that are checked."""
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def found(text: str) -> list[tuple[int, str, str]]:
    """Return line, words and advice of each phrase in a text, examples in code blocks left out."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    return sorted(
        (text.count("\n", 0, hit.start()) + 1, " ".join(hit[0].split()), advice)
        for pattern, advice in PHRASES.items()
        for hit in re.finditer(pattern.replace(" ", r"\s+"), text, re.IGNORECASE)
    )


def faults(paths: Iterable[Path], allowed: Mapping[str, int] = ALLOWED) -> list[str]:
    """Return a line for each phrase of the files that have more than they may."""
    out = []
    for path in paths:
        name, hits = str(path.relative_to(ROOT)), found(path.read_text(encoding="utf-8"))
        if len(hits) > allowed.get(name, 0):
            out += [f"{name}:{line}: {words!r}: write: {advice}" for line, words, advice in hits]
            out.append(f"{name}: {len(hits)} such phrases, allowed are {allowed.get(name, 0)}")
    return out


if __name__ == "__main__":
    lines = faults(documents())
    print("\n".join(lines))
    sys.exit(bool(lines))
