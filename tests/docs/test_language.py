"""The documents are written in plain technical English: no phrase of tools/docs/plain_words.py."""

from __future__ import annotations

from pathlib import Path

from tools.docs import plain_words


def test_no_such_phrase_in_the_documents() -> None:
    """When this fails: write what the line advises."""
    assert plain_words.faults(plain_words.documents()) == []


def test_what_is_allowed_is_there_no_more_than_needed() -> None:
    used = {name: len(plain_words.found((plain_words.ROOT / name).read_text())) for name in plain_words.ALLOWED}
    assert used == {name: most for name, most in plain_words.ALLOWED.items() if most}


def test_phrases_are_found() -> None:
    text = "A line.\nThe agent\nsays so, and starts anew.\n```\nit goes on\n```\nNobody is told.\n"
    assert [(line, words) for line, words, _ in plain_words.found(text)] == [
        (2, "agent says"), (3, "anew"), (7, "Nobody"), (7, "is told"),
    ]  # fmt: skip


def test_a_file_with_more_than_it_may_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    file = tmp_path / "a.md"
    file.write_text("It goes on for ever.\n")
    assert len(plain_words.faults([file], {})) == 3
    assert plain_words.faults([file], {"a.md": 2}) == []
