"""Build the configuration: flags over environment over file over defaults, each value with the place it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lbagent.config.check_config import check
from lbagent.config.config_file import VALUE_KINDS, Fault, read_file
from lbagent.config.schema import BY_KEY, FALSE_WORDS, OPTIONS, TRUE_WORDS, Config, Option
from lbagent.durations import parse_whole_seconds
from lbagent.errors import ConfigError
from lbagent.textfile.shape_errors import shape_error
from lbagent.value_errors import shown, wrong_type

CONFIG_ENV = "LBAGENT_CONFIG"


def load(flags: Mapping[str, Any], env: Mapping[str, str], file: str = "") -> Config:
    """Build the configuration: flags (by field name; None = not given) over environment over file over defaults.

    Raises ConfigError with a line for each fault: the flag, variable or FILE:LINE and the problem.
    """
    path = file or env.get(CONFIG_ENV, "")
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    faults: list[str] = []
    fault = faults.append
    for origin in (read_file(path, fault) if path else {}, _read_env(env, fault), _read_flags(flags, fault)):
        for key, (value, place) in origin.items():
            values[key], places[key] = value, place
    config = _convert(values, places, fault)
    if config is not None:
        check(config, places, fault)
    if config is None or faults:
        raise ConfigError("\n".join(faults))
    return config


def _read_flags(flags: Mapping[str, Any], fault: Fault) -> dict[str, tuple[Any, str]]:
    out: dict[str, tuple[Any, str]] = {}
    for option in OPTIONS:
        for name in option.names:
            value = flags.get(name.field)
            if value is None or (option.kind == "list" and not value):
                continue
            _put(out, option, tuple(value) if option.kind == "list" else value, name.flag, fault)
    return out


def _read_env(env: Mapping[str, str], fault: Fault) -> dict[str, tuple[Any, str]]:
    out: dict[str, tuple[Any, str]] = {}
    for option in OPTIONS:
        for name in option.names:
            if name.env in env:
                try:
                    _put(out, option, _from_text(option, env[name.env], name.env), name.env, fault)
                except ConfigError as error:
                    fault(str(error))
    return out


def _put(out: dict[str, tuple[Any, str]], option: Option, value: Any, place: str, fault: Fault) -> None:
    """Record a value; it is a fault if another name of the same setting has one."""
    if option.key in out:
        fault(f"{place}: it cannot be given beside {out[option.key][1]}: they are one setting")
    else:
        out[option.key] = (value, place)


def _from_text(option: Option, text: str, place: str) -> Any:
    """Turn an environment variable's text into the key's type."""
    if option.kind == "list":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if option.kind == "switch":
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise ConfigError(f"{place}: {text!r} is not a switch; use true or false")
        return text.lower() in TRUE_WORDS
    if option.kind == "number":
        try:
            return parse_whole_seconds(text) if option.unit == "s" else int(text)
        except ValueError as error:
            wrong = error if option.unit == "s" else f"{text!r} is not a whole number"
            raise ConfigError(f"{place}: {wrong}") from None
    return text


def _convert(values: Mapping[str, Any], places: Mapping[str, str], fault: Fault) -> Config | None:
    """Return the record without invalid values, each of which is a fault."""
    left = dict(values)
    while True:
        try:
            return msgspec.convert(left, Config)
        except msgspec.ValidationError as error:
            wrong = shape_error(error)
            key = str(wrong.path[0]) if wrong.path else ""
            if key not in left:
                fault(wrong.text)
                return None
            fault(f"{places.get(key, key)}: {_wrong_value(BY_KEY[key], left.pop(key))}")


def _wrong_value(option: Option, value: Any) -> str:
    """Return the problem of an invalid value: another word, a number out of its range, another type."""
    if option.choices:
        return f"{shown(value)} is not possible; use one of {', '.join(option.choices)}"
    if option.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        return f"{value} is not a whole number from {option.least} to {option.most}"
    return wrong_type(value, VALUE_KINDS[option.kind])
