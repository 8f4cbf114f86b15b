"""Log lines on stderr, text or JSON: one event, one line, a constant message and its fields.

Code logs with the standard library: `logging.getLogger(__name__).info("plan applied", extra={"entries": 12})`.
Field names that a LogRecord has itself (name, args, module, ...) are refused by the library.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import Any, TextIO

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/[]@+,%*")
FORMATS = ("text", "json")


def setup(form: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (stderr) in this form; calling it again changes form and level (SIGHUP)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        if getattr(old, "lbagent", False):
            root.removeHandler(old)
    handler.lbagent = True  # type: ignore[attr-defined]  # so that only ours is replaced
    root.addHandler(handler)
    root.setLevel(level.upper())
    for noisy in ("pyroute2", "asyncio"):  # their debug and info lines are about themselves
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def take_stderr() -> None:
    """Make log lines of what Python itself writes to stderr: warnings, and errors that no code could catch."""
    logging.captureWarnings(capture=True)
    sys.unraisablehook = _unraisable
    threading.excepthook = _unraisable


def _unraisable(found: sys.UnraisableHookArgs | threading.ExceptHookArgs) -> None:
    kind, error = found.exc_type, found.exc_value or found.exc_type()
    logging.getLogger(__name__).error(
        "an error in a task that was not awaited", exc_info=(kind, error, found.exc_traceback)
    )


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what `extra` brought."""
    return {key: value for key, value in vars(record).items() if key not in _OWN}


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _area(record: logging.LogRecord) -> str:
    return record.name.removeprefix("lbagent.")


class TextFormatter(logging.Formatter):
    """`2026-11-21T08:44:08.123Z INFO sync.target.bpf_target: plan applied entries=12`; always one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one line; an exception's last line is its `error` field, its traceback follows at level debug only."""
        parts = [f"{_time(record)} {record.levelname} {_area(record)}: {_one_line(record.getMessage())}"]
        parts += [f"{key}={_word(value)}" for key, value in _with_error(record).items()]
        text = " ".join(parts)
        if record.exc_info and logging.getLogger().isEnabledFor(logging.DEBUG):
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, area, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one line; a traceback is the field `traceback`."""
        out: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "area": _area(record),
            "message": record.getMessage(),
        }
        for key, value in _with_error(record).items():
            out.setdefault(key, value)
        if record.exc_info:
            out["traceback"] = self.formatException(record.exc_info)
        return json.dumps(out, default=str, ensure_ascii=False)


def _with_error(record: logging.LogRecord) -> dict[str, Any]:
    out = fields(record)
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        out.setdefault("error", f"{type(error).__name__}: {error}")
    return out


def _word(value: Any) -> str:
    """Write a value so that a reader can tell where it ends."""
    if isinstance(value, str) and value and _BARE.issuperset(value):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"))


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
