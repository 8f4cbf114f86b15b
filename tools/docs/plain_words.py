"""`make lint`: phrases that documents, docstrings, comments and messages do not use, each with its replacement.

`python -m tools.docs.plain_words [--count] [PATH...]`: --count prints a number for each folder, PATH limits the search. A text that quotes another program may stay: put `plain words: REASON` in a comment on its line or above.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".c", ".go", ".h", ".md", ".py", ".service", ".sh", ".toml", ".yaml", ".yml"}
NAMES = {"Dockerfile", "Makefile", "Vagrantfile", "image"}
SKIPPED = {  # results; headers of the kernel; the history; the two files in which the phrases are data
    "build", "dist", "lbagent/bpf/stub", "CHANGELOG.md", "tools/docs/plain_words.py", "tests/docs/test_language.py",
}  # fmt: skip


class Phrase(NamedTuple):
    """A forbidden phrase: one of these words, the patterns before and after it, and the replacement."""

    words: str
    before: str
    after: str
    advice: str


NOUNS = """
agents? backends? bird caches? checks? clients? clusters? configs? configurations? containers? controllers? devices? documents? drivers?
entry entries files? flows? frontends? gateways? haproxy headers? hosts? instances? kernels? kubelets? leaders? leases? links? loops?
machines? manifests? maps? neighbours? nodes? objects? packets? peers? planes? plans? pods? pools? ports? probes? process processes
programs? providers? proxy proxies queries query queues? readers? renderers? replies reply routers? routes? servers? services? sessions?
slices? sockets? sources? stacks? states? status switch switches tables? targets? tests? verbs? watch watches
"""
MACHINE = (
    rf"(?<![\w.-])(?:{'|'.join(NOUNS.split())}|it|which|that)(?: (?:never|still|also|only|then|now|itself|alone|once))?"
)
BE = "(?:is|are|was|were|be)(?: (?:not|never))?"
PHRASES = (
    Phrase("says say said", MACHINE, "", "states, reports, returns, contains"),
    Phrase("knows know knew believes remembers", MACHINE, "", "has, stores, supports, keeps"),
    Phrase("wants want wishes wish", MACHINE, "", "requests, needs"),
    Phrase("asks asked", MACHINE, "", "requests, reads, queries"),
    Phrase("tells told", MACHINE, r" (?![^.;:]*?\b(?:apart|from)\b)", "reports, sends, shows"),
    Phrase("hears heard hear", "", "", "receives, reads"),
    Phrase("wishes wished", "", "", "requested, requests"),
    Phrase("told", BE, r"(?! apart| from)", "receives; is configured"),
    Phrase("said", BE, "", "is reported, is printed"),
    Phrase("asked", BE, " (?:for|again)", "is requested; retries"),
    Phrase("says say said", "", " (?:nothing|so)", "has no effect, sends no data; reports it"),
    Phrase("anew", "", "", "again; from the start"),
    Phrase("ever", "for", "", "without limit; permanently"),
    Phrase("goes went", "", " on", "continues"),
    Phrase("another", "is", " than", "differs from"),
    Phrase("goes", "as far as it", "", "say which part"),
    Phrase("but", "", " for", "except"),
    Phrase("made", "what it is", " of", "its parts"),
    Phrase("there", "", " it is", "it is there"),
    Phrase("word", "(?:without a|has the|have the)", "", "without an error; decides"),
    Phrase("somebody nobody whoever", "", "", "name it: another process, no client"),
    Phrase("mended mends mend", "", "", "repair, repaired (the JSON key `mended` stays)"),
    Phrase("learnt", "", "", "is read, is added"),
    Phrase("ours", r"\w+s? of", "", "the agent's; our own"),
    Phrase("earnest", "in", "", "really, in full"),
)
GAP = r"""(?:[\s#*"'`/]|(?<=["'\s])[frb]+(?=["']))+"""  # between two words: also the next line of a comment, or of a text in parts
NAMES_BEFORE = tuple("_`.-")  # `mended`, rows.said: names, not words
BEFORE_MOST = 120  # characters that are read before a word
PATTERNS = [
    (
        word,
        re.compile(rf"{word}{phrase.after}\b".replace(" ", GAP)),
        re.compile(rf"\b{phrase.before} \Z".replace(" ", GAP)) if phrase.before else None,
        phrase.advice,
    )
    for phrase in PHRASES
    for word in phrase.words.split()
]
MARK = "plain words:"
REASON = re.compile(rf"{MARK}[ \t]*(\w+ \w+)")
BLOCK = re.compile(r"```.*?```", re.DOTALL)
MIDDLES = {getattr(tokenize, "FSTRING_MIDDLE", -1)}  # since Python 3.12 an f-string has tokens of its own
FIELD = re.compile(r"\{[^{}]*\}")


class Hit(NamedTuple):
    """A phrase in a file."""

    line: int
    words: str
    advice: str


def files(folder: Path | None = None) -> Iterator[Path]:
    """Yield the files that are checked, folder by folder."""
    folder = folder or ROOT
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = folder / entry.name
        if entry.name.startswith((".", "__pycache__")) or path.relative_to(ROOT).as_posix() in SKIPPED:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from files(path)
        elif path.suffix in SUFFIXES or path.name in NAMES:
            yield path


def hidden(found: re.Match[str]) -> str:
    """Return blanks in place of a text; line ends stay."""
    return re.sub(r"[^\n]", " ", found[0])


def prose_of_python(text: str) -> str:
    """Return a program with blanks in place of everything except comments and strings.

    A string without a blank is a key or a name; the braces of an f-string contain code.
    """
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    out, at = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if (
            token.type == tokenize.COMMENT
            or (token.type == tokenize.STRING and " " in token.string)
            or token.type in MIDDLES
        ):
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            string = token.string if token.type == tokenize.COMMENT else FIELD.sub(hidden, text[begin:end])
            out += [re.sub(r"[^\n]", " ", text[at:begin]), string]
            at = end
    return "".join(out)


def phrases(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and advice of each phrase. Patterns that start with a word are fast; the words before it are checked after."""
    low = text.lower()
    for word, pattern, before, advice in PATTERNS:
        if word not in low:
            continue
        for hit in pattern.finditer(low):
            begin = hit.start()
            if low[begin - 1 : begin].isalnum() or low[begin - 1 : begin] in NAMES_BEFORE:
                continue
            if before is not None:
                at = max(0, begin - BEFORE_MOST)
                ahead = before.search(low, at, begin)
                if ahead is None:
                    continue
                begin = ahead.start()
            yield begin, hit.end(), advice


def found(text: str, suffix: str = ".md") -> list[Hit]:
    """Return the phrases in the text of a file with this suffix, without those that have a reason for an exception."""
    hits = set()
    if next(phrases(text), None):  # most files have none, and are not tokenized
        prose = prose_of_python(text) if suffix == ".py" else BLOCK.sub(hidden, text) if suffix == ".md" else text
        for begin, end, advice in phrases(prose):
            words = " ".join(re.findall(r"[\w']{2,}", prose[begin:end]))
            hits.add(Hit(prose.count("\n", 0, begin) + 1, words, advice))
    marks = {number for number, line in enumerate(text.splitlines(), 1) if REASON.search(line)}
    found_on = {hit.line for hit in hits}
    needless = [
        Hit(mark, MARK, "nothing: no phrase needs it") for mark in marks if found_on.isdisjoint((mark, mark + 1))
    ]
    return sorted([*(hit for hit in hits if marks.isdisjoint((hit.line, hit.line - 1))), *needless])


def below(path: Path, folders: Sequence[str]) -> bool:
    """Return whether a file is one of these, or is below one of these folders (relative to the project)."""
    name = path.relative_to(ROOT).as_posix()
    return any(name == folder or name.startswith(folder + "/") for folder in folders)


def hits_of(paths: Sequence[str] = ()) -> Iterator[tuple[Path, Hit]]:
    """Yield the phrases in the project's files, or in those below `paths`."""
    for path in files():
        if not paths or below(path, paths):
            for hit in found(path.read_text(encoding="utf-8"), path.suffix):
                yield path, hit


def main(arguments: Sequence[str]) -> int:
    """Print the phrases, or their number in each folder; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.plain_words")
    parser.add_argument("--count", action="store_true", help="only how many phrases each folder has")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders, relative to the project")
    options = parser.parse_args(arguments)
    folders: Counter[str] = Counter()
    for path, hit in hits_of([path.rstrip("/") for path in options.paths]):
        name = path.relative_to(ROOT)
        folders["/".join(name.parts[:-1][:2]) or str(name)] += 1
        if not options.count:
            print(f"{name}:{hit.line}: {hit.words!r}: write: {hit.advice}")
    if options.count:
        for folder, number in sorted(folders.items()):
            print(f"{number:5} {folder}")
    return bool(folders)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
