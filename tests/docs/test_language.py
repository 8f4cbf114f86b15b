"""Documents, comments, docstrings and messages are plain technical English: no phrase of tools/docs/plain_words.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs import plain_words


def words(text: str, suffix: str) -> list[tuple[int, str]]:
    return [(hit.line, hit.words) for hit in plain_words.found(text, suffix)]


def test_no_such_phrase() -> None:
    """When this fails: write what the line advises."""
    found = plain_words.hits_of()
    assert [f"{path}:{hit.line}: {hit.words!r}: {hit.advice}" for path, hit in found] == []


def test_phrases_of_a_document_are_found() -> None:
    text = "A line.\nThe agent\nsays so, and starts anew.\n```\nit goes on\n```\nNobody is told.\n"
    assert words(text, ".md") == [(2, "agent says"), (3, "anew"), (3, "says so"), (7, "Nobody"), (7, "is told")]


def test_phrases_of_a_program_are_found_in_comments_and_strings_alone() -> None:
    text = '''
"""What the agent
says."""
said = asked.anew  # the kernel does
# not know it; the kernel
# knows it
raise Error(
    f"{for_ever} goes "
    f"on {it.says} for ever"
)
KEY = "anew"
'''
    assert words(text, ".py") == [(2, "agent says"), (5, "kernel knows"), (8, "goes on"), (9, "for ever")]


@pytest.mark.parametrize("suffix", [".c", ".h", ".sh", ".yaml", ""])
def test_other_files_are_read_as_they_are(suffix: str) -> None:
    assert words("/* A program\n * hears nothing. */\nint anew_x;\n", suffix) == [(2, "hears")]


@pytest.mark.parametrize(
    "text",
    [
        "The operator says which.", "Unknown hosts.", "The field tells a name from an address.", "The key `mended` stays.",
        "forever", "The process of a map knowing.", "Anew2 x_anew", "The two cannot be told apart.",
    ],
)  # fmt: skip
def test_what_is_no_such_phrase(text: str) -> None:
    assert words(text, ".md") == []


def test_an_exception_needs_a_reason_and_a_phrase() -> None:
    assert words("x = 'it goes on'  # plain words: the text of another program\n", ".py") == []
    assert words("# plain words: the text of another program\nx = 'it goes on'\n", ".py") == []
    assert words("x = 'it goes on'  # plain words:\n", ".py") == [(1, "goes on")]
    assert words("x = 'it ends'  # plain words: the text of another program\n", ".py") == [(1, "plain words:")]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    for name in ("a/b.py", "c/c.h", "build/d.py", "a/.git/e.py", "a/f.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# for ever\n")
    assert plain_words.main([]) == 1
    assert capsys.readouterr().out == "".join(
        f"{name}:1: 'for ever': write: without limit; permanently\n" for name in ("a/b.py", "c/c.h")
    )
    assert plain_words.main(["--count"]) == 1
    assert capsys.readouterr().out == "    1 a\n    1 c\n"
    assert plain_words.main(["c/"]) == 1
    assert capsys.readouterr().out.startswith("c/c.h:1:")
    assert plain_words.main(["d"]) == 0
