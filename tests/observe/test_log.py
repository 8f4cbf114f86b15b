"""Log lines: one a line, text or JSON, fields apart from the message."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lbagent.observe.log import setup


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def test_text(stream: io.StringIO) -> None:
    setup("text", "info", stream)
    log = logging.getLogger("lbagent.sync.loop")
    log.info(
        "services applied", extra={"generation": 4, "service": "shop/web", "error": 'no "room"\nleft', "took_s": 0.25}
    )
    log.debug("not shown")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line.split(" ", 1)[0].endswith("Z")
    assert line.split(" ", 1)[1] == (
        'INFO sync.loop: services applied generation=4 service=shop/web error="no \\"room\\"\\nleft" took_s=0.25\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "null"),
        ("", '""'),
        ("a b", '"a b"'),
        (["a", 1], '["a",1]'),
        (1.0, "1"),
        (10**20, "1" + "0" * 20),
    ],
)
def test_values_end_where_they_should(stream: io.StringIO, value: object, text: str) -> None:
    setup("text", "info", stream)
    logging.getLogger("x").info("m", extra={"v": value})
    assert stream.getvalue().endswith(f"INFO x: m v={text}\n")


def test_json(stream: io.StringIO) -> None:
    setup("json", "debug", stream)
    logging.getLogger("lbagent.agent").warning("a device\ntakes no traffic", extra={"device": "eth0", "level": "mine"})
    (line,) = stream.getvalue().splitlines()
    row = json.loads(line)
    assert (row["level"], row["area"], row["message"], row["device"]) == (
        "warning",
        "agent",
        "a device\ntakes no traffic",
        "eth0",
    )


def _fail() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("debug", 5)])
def test_exceptions(stream: io.StringIO, level: str, lines: int) -> None:
    """The error is a field; the traceback is for debugging."""
    setup("text", level, stream)
    try:
        _fail()
    except ValueError:
        logging.getLogger("x").exception("a request failed")
    assert 'error="ValueError: broken"' in stream.getvalue().splitlines()[0]
    assert (len(stream.getvalue().splitlines()) > 1) is (lines > 1)
    setup("json", level, again := io.StringIO())
    try:
        _fail()
    except ValueError:
        logging.getLogger("x").exception("a request failed")
    assert "Traceback" in json.loads(again.getvalue())["traceback"]


def test_setup_again_replaces(stream: io.StringIO) -> None:
    """SIGHUP changes form and level; no line comes twice."""
    setup("text", "info", io.StringIO())
    setup("json", "error", stream)
    logging.getLogger("x").warning("quiet")
    logging.getLogger("x").error("loud")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_what_python_itself_would_write_is_a_line_too() -> None:
    """A process of its own: warnings, a thread's error, an error in a finalizer; every line of stderr is JSON."""
    code = """
import threading, warnings
from lbagent.observe import log
log.setup("json")
log.take_stderr()
warnings.warn("deprecated")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
class Bad:
    def __del__(self):
        raise ValueError("no")
Bad()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    rows = [json.loads(line) for line in done.stderr.splitlines()]
    assert [row["level"] for row in rows] == ["warning", "error", "error"]
    assert "deprecated" in rows[0]["message"]
    assert [row["error"] for row in rows[1:]] == ["ZeroDivisionError: division by zero", "ValueError: no"]
