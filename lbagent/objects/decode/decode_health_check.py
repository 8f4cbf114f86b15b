"""Read how the backends of a Service are checked.

`TYPE[:PORT][/PATH] [interval=5s] [timeout=1s] [rise=2] [fall=3] [via=direct|vip]`, or `passive`
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lbagent.durations import parse_duration
from lbagent.nearest_word import nearest
from lbagent.objects.decode.report import Report, annotation
from lbagent.objects.decode.wire import Meta
from lbagent.probes.backend_check import BackendCheck
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec

DEFAULT_INTERVAL_S, DEFAULT_TIMEOUT_S = 5.0, 1.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 3600.0
MIN_TIMEOUT_S = 0.01
MAX_IN_A_ROW = 100  # of rise and fall
MAX_PATH = 1024  # characters
NOT_CHECKED = "its backends are not checked"
PASSIVE = "passive"
_NO_PROBE = ProbeSpec(kind=ProbeKind.TCP)
_KINDS = {kind.value: kind for kind in ProbeKind}
_DEFAULT_PATH = {ProbeKind.HTTP: "/", ProbeKind.HTTPS: "/", ProbeKind.GRPC: ""}  # of those that have one
_WHAT = re.compile(r"([^:/\s]+)(?::([^/\s]*))?(/.*)?", re.ASCII)
_PATH = re.compile(r"/[\x21-\x7e]*", re.ASCII)
_FROM = {"all": False, "local": True}


def decode_health_check(meta: Meta, report: Report) -> BackendCheck | None:
    """Return how the backends are checked, None for not at all."""
    local_only = _decode_from(meta, report)
    found = annotation(meta, "health-check")
    if found is None:
        return None
    path, text = found
    try:
        return parse_health_check(text, local_only=local_only)
    except ValueError as error:
        report.error(path, str(error), NOT_CHECKED)
    last: BackendCheck | None = report.last_value("health_check")
    if last is not None:
        report.say_kept(path, "the passive check" if last.passive else f"the check by {last.probe.kind}")
    return last


def _decode_from(meta: Meta, report: Report) -> bool:
    found = annotation(meta, "health-check-from")
    if found is None:
        return False
    path, text = found
    if text.lower() not in _FROM:
        report.error(path, f"unknown value {text!r}; one of {', '.join(_FROM)} is possible", "all is used")
    return _FROM.get(text.lower(), False)


def parse_health_check(text: str, *, local_only: bool = False) -> BackendCheck:
    """Return the check that a text describes. Raises ValueError."""
    what, *words = text.split() or [""]
    if what == PASSIVE:
        if words:
            raise ValueError(f"a passive check has no {words[0].partition('=')[0]}=: it sends nothing")
        return BackendCheck(_NO_PROBE, passive=True)
    kind, port, path = _parse_what(what)
    values: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in _SETTINGS:
            raise ValueError(_unknown_setting(name))
        if name in values:
            raise ValueError(f"{name} is given twice")
        values[name] = _SETTINGS[name](name, value)
    interval = values.setdefault("interval", DEFAULT_INTERVAL_S)
    timeout = values.setdefault("timeout", min(DEFAULT_TIMEOUT_S, interval))
    if timeout > interval:
        raise ValueError(f"timeout={timeout:g}s is longer than interval={interval:g}s")
    via_vip = values.pop("via", False)
    if via_vip and port:
        raise ValueError(
            "via=vip goes through the Service, whose port is that of its backends: it cannot go with a :PORT"
        )
    spec = ProbeSpec(kind=kind, path=path, host="", **{"rise": 2, "fall": 3} | values)
    return BackendCheck(spec, port, local_only, via_vip)


def _parse_what(what: str) -> tuple[ProbeKind, int, str]:
    """Return kind, port (0 = the backend's own) and path of `TYPE[:PORT][/PATH]`."""
    parts = _WHAT.fullmatch(what)
    word = parts[1] if parts else what
    if parts is None or word not in _KINDS:
        raise ValueError(f"{word!r} is not a type of check; one of {', '.join(_KINDS)}, {PASSIVE} is possible")
    kind, port, path = _KINDS[word], parts[2], parts[3] or ""
    if port is not None and not (port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port of 1-65535")
    if path and kind not in _DEFAULT_PATH:
        raise ValueError(f"a check by {kind} has no path")
    if path and (_PATH.fullmatch(path) is None or len(path) > MAX_PATH):
        raise ValueError(f"the path has a character that is not printable ASCII, or more than {MAX_PATH} of them")
    return kind, int(port or 0), path or _DEFAULT_PATH.get(kind, "")


def _unknown_setting(name: str) -> str:
    probable = nearest(name, _SETTINGS)
    hint = f"did you mean {probable}=?" if probable else f"{', '.join(f'{each}=' for each in _SETTINGS)} are possible"
    return f"unknown word {name!r}; {hint}"


def _interval(name: str, text: str) -> float:
    seconds = parse_duration(text)
    if not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        raise ValueError(f"{name}={text} is not between 100ms and 1h")
    return seconds


def _timeout(name: str, text: str) -> float:
    seconds = parse_duration(text)
    if seconds < MIN_TIMEOUT_S:
        raise ValueError(f"{name}={text} is less than 10ms")
    return seconds


def _in_a_row(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= MAX_IN_A_ROW):
        raise ValueError(f"{name}={text} is not a number of 1-{MAX_IN_A_ROW}")
    return int(text)


def _via(name: str, text: str) -> bool:
    if text not in _VIA:
        raise ValueError(f"{name}={text} is unknown; {name}=direct and {name}=vip are possible")
    return _VIA[text]


_VIA = {"direct": False, "vip": True}
_SETTINGS: dict[str, Callable[[str, str], Any]] = {
    "interval": _interval,
    "timeout": _timeout,
    "rise": _in_a_row,
    "fall": _in_a_row,
    "via": _via,
}
