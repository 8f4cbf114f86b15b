"""YAML with Kubernetes' rules, within bounds."""

from __future__ import annotations

import pytest

from lbagent.textfile.yamldoc import YamlError, find_line, load, load_lines


def values(text):
    return [value for _, value in load(text)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80", 80), ("-1", -1), ("0x50", 80), ("0o17", 15), ("1.5", 1.5), ("1e3", 1000.0), ("true", True), ("False", False),
        ("~", None), ("", None), ("null", None), ("2024-05-01T00:00:00Z", "2024-05-01T00:00:00Z"), ("10:20", "10:20"),
        ("on", "on"), ("yes", "yes"), ("'80'", "80"), ('"true"', "true"), ("!!str 80", "80"), ("10.244.1.1", "10.244.1.1"),
        ("fd00::1", "fd00::1"), ("010", 10), ("1_000", "1_000"), (".5", 0.5), ("-", [None]), ("=", "="),
    ],
)  # fmt: skip
def test_scalars(text, value):
    assert values(f"a: {text}" if text != "-" else "a:\n-")[0] == {"a": value}


def test_documents_have_their_first_line():
    assert list(load("# note\na: 1\n---\n\nb: 2\n---\n---\nc: 3\n")) == [
        (2, {"a": 1}),
        (5, {"b": 2}),
        (7, None),
        (8, {"c": 3}),
    ]


def test_anchors_aliases_and_merge_keys():
    text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nalso: *b\n"
    assert values(text) == [{"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}, "also": {"x": 1, "y": 2}}]


def test_an_alias_is_a_copy():
    (document,) = values("a: &x [1]\nb: *x\n")
    document["a"].append(2)
    assert document["b"] == [1]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: b: c", 1, "mapping values"),
        ("a: 1\n b: 2", 2, "mapping values"),
        ("a: [1, 2\nb: 3", 2, ""),
        ("a: *missing", 1, "unknown alias"),
        ("&a [*a]", 1, "unknown alias"),
        ("a: 1\nb: 2\na: 3", 3, "twice"),
        ("? [x]\n: y", 1, "not a text"),
        ("a: \x01", 1, ""),
        ("a: 'open", 1, ""),
        ("[" * 100_000, 1, "levels"),
        ("a:\n" + "\n".join(f"{' ' * n}- a:" for n in range(1, 200, 2)), 33, "levels"),
    ],
)
def test_errors_name_the_line(text, line, words):
    with pytest.raises(YamlError) as error:
        values(text)
    assert error.value.line == line
    assert words in error.value.problem


def test_aliases_that_multiply_are_bounded():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(YamlError, match="aliases stand for more than"):
        values("\n".join(rows))


def test_lines_of_fields():
    text = "---\na: 1\n---\nspec:\n  ports:\n  - name: x\n    port: 80\n  - {name: y,\n     port: 81}\n"
    lines = list(load_lines(text))
    assert find_line(lines[1], ("spec", "ports", 0, "port")) == 7
    assert find_line(lines[1], ("spec", "ports", 1, "port")) == 9
    assert find_line(lines[1], ("spec", "ports", 1, "nowhere")) == 8
    assert find_line(lines[1], ()) == 4
