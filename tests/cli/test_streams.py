"""Streams that are closed or full, terminals that cannot encode a name, arguments that are not text."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml
from msgspec import structs

from tests.api.serving import Agent


@pytest.mark.parametrize(
    ("redirect", "words", "code"),
    [
        (">&-", "svc list", 0),
        (">&-", "config show", 0),
        ("2>&-", "svc get shop/none", 3),
        ("2>/dev/full", "svc get shop/none", 3),
        ("2>/dev/full", "svc get", 2),
        (">/dev/full", "svc list", 1),
        (">/dev/full", "--help", 1),
        ("<&-", "plan -f -", 0),
        ("<&- >&- 2>&-", "svc list", 0),
    ],
)
def test_streams_that_are_closed_or_full(agent: Agent, redirect: str, words: str, code: int) -> None:
    line = f"exec {sys.executable} -m lbagent {words} {redirect}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["table", "json", "yaml", "name"])
def test_names_that_the_terminal_cannot_write(agent: Agent, encoding: str, form: str) -> None:
    """No error; JSON and YAML stay valid."""
    svc = agent.current.services[1]
    name = structs.replace(svc.name, namespace="läden", name="日本")
    agent.advance((structs.replace(svc, name=name),))
    env = os.environ | {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    argv = [sys.executable, "-m", "lbagent", "svc", "list", "-o", form]
    done = subprocess.run(argv, env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(
        "utf-8" if encoding == "ascii" else encoding
    )  # click treats ASCII as a mistake and uses UTF-8
    if form in ("json", "yaml"):
        (row,) = yaml.safe_load(text)
        assert (row["namespace"], row["name"]) == ("läden", "日本")
    elif encoding != "latin-1":
        assert "läden/日本" in text
    else:
        assert "\\u65e5\\u672c" in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((b"svc", b"get", b"\xff/x"), 3),
        ((b"svc", b"list", b"-n", b"\xff"), 0),
        ((b"svc", b"list", b"--sort-by", b"\xff"), 2),
        ((b"backend", b"set-state", b"maintenance", b"\xff:80"), 2),
        ((b"config", b"check", b"--config", b"/none/\xff"), 2),
        ((b"plan", b"-f", b"/none/\xff"), 2),
        ((b"\xff",), 2),
    ],
)
def test_words_that_are_no_text(agent: Agent, words: tuple[bytes, ...], code: int) -> None:
    argv = [sys.executable.encode(), b"-m", b"lbagent", *words]
    for env in ({}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}):
        done = subprocess.run(argv, env=os.environ | env, capture_output=True, timeout=60)
        assert done.returncode == code
        assert b"Traceback" not in done.stderr
        assert b"defect" not in done.stderr
