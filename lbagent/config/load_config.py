"""Build the configuration: flags over environment over file over defaults, each value with the place it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lbagent.config.check_config import check
from lbagent.config.config_file import VALUE_KINDS, read_file
from lbagent.config.duration import parse_seconds
from lbagent.config.schema import BY_KEY, FALSE_WORDS, OPTIONS, TRUE_WORDS, Config, Option
from lbagent.errors import ConfigError
from lbagent.wrong_value import shown, wrong_type

CONFIG_ENV = "LBAGENT_CONFIG"


def load(flags: Mapping[str, Any], env: Mapping[str, str], file: str = "") -> Config:
    """Build the configuration: flags (by field name; None = not given) over environment over file over defaults.

    Raises ConfigError naming the flag, variable or FILE:LINE and what is wrong.
    """
    path = file or env.get(CONFIG_ENV, "")
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for origin in (read_file(path) if path else {}, _read_env(env), _read_flags(flags)):
        for key, (value, place) in origin.items():
            values[key], places[key] = value, place
    config = _convert(values, places)
    check(config, places)
    return config


def _read_flags(flags: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    out: dict[str, tuple[Any, str]] = {}
    for option in OPTIONS:
        for name in option.names:
            value = flags.get(name.field)
            if value is None or (option.kind == "list" and not value):
                continue
            _put(out, option, tuple(value) if option.kind == "list" else value, name.flag)
    return out


def _read_env(env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    out: dict[str, tuple[Any, str]] = {}
    for option in OPTIONS:
        for name in option.names:
            if name.env in env:
                _put(out, option, _from_text(option, env[name.env], name.env), name.env)
    return out


def _put(out: dict[str, tuple[Any, str]], option: Option, value: Any, place: str) -> None:
    """Note a value; raises ConfigError where another name of the same setting has given one."""
    if option.key in out:
        raise ConfigError(f"{place}: it cannot be given beside {out[option.key][1]}: they are one setting")
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
            return parse_seconds(text) if option.unit == "s" else int(text)
        except ValueError as error:
            wrong = error if option.unit == "s" else f"{text!r} is not a whole number"
            raise ConfigError(f"{place}: {wrong}") from None
    return text


def _convert(values: Mapping[str, Any], places: Mapping[str, str]) -> Config:
    try:
        return msgspec.convert(dict(values), Config)
    except msgspec.ValidationError as error:
        _, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`").split("[")[0]
        raise ConfigError(f"{places.get(key, key)}: {_wrong_value(BY_KEY[key], values.get(key))}") from None


def _wrong_value(option: Option, value: Any) -> str:
    """Return what is wrong with a value that the record refused: another word, a number out of its range, another type."""
    if option.choices:
        return f"{shown(value)} is not possible; use one of {', '.join(option.choices)}"
    if option.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        return f"{value} is not a whole number from {option.least} to {option.most}"
    return wrong_type(value, VALUE_KINDS[option.kind])
