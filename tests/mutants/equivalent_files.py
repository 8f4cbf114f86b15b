"""The list of equivalent mutants: `tests/mutants/equivalent/`, one file for each source file, read and written by `make mutants`.

A file has its source's path as heading, and then one line for each entry: "- `before` -> `after`: why". The after `*` stands for every
change of the line. `make mutants ARGS=--write` removes entries whose line has changed, and adds the survivors with the reason UNJUDGED; an
entry with that reason explains nothing until a developer replaces it. `--prune` only removes entries whose line has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutants.mutant import ROOT, SURVIVORS, UNJUDGED, Mutant, Outcome, entry_of, equivalents, without_stale

FOLDER = Path(__file__).resolve().parent / "equivalent"


def list_file(source: str, folder: Path = FOLDER) -> Path:
    """Return the file with the entries of a source file, given by its path in the checkout."""
    return folder / (source.removeprefix("lbagent/") + ".md")


def read_list(folder: Path = FOLDER) -> str:
    """Return the text of all files."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.md")))


def write_list(mutants: Sequence[Mutant], outcomes: Iterable[Outcome], folder: Path = FOLDER) -> list[Path]:
    """Bring the files of these mutants' sources up to date, and of sources that are gone; return the files that changed."""
    entries: dict[str, list[str]] = {}
    listed = equivalents(read_list(folder), unjudged=True)
    kept = without_stale(listed, mutants)
    for entry, why in listed.items():
        lines = entries.setdefault(entry[0], [])
        if entry in kept and (ROOT / entry[0]).is_file():
            lines.append(entry_of(entry[1], entry[2], why))
    for mutant in (outcome.mutant for outcome in outcomes if outcome.fate in SURVIVORS):
        if (mutant.path, mutant.before, mutant.after) not in listed:
            entries.setdefault(mutant.path, []).append(entry_of(mutant.before, mutant.after, UNJUDGED))
    return [path for source, lines in entries.items() for path in _write(source, lines, folder)]


def _write(source: str, lines: Sequence[str], folder: Path) -> list[Path]:
    path = list_file(source, folder)
    text = f"# {source}\n\n" + "".join(f"{line}\n" for line in lines)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return []
    if lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    else:
        path.unlink(missing_ok=True)
    return [path]
