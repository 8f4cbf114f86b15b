"""Build the configuration: flags over environment over file over defaults, each value with the place it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lbagent.config.check_config import check
from lbagent.config.config_file import VALUE_KINDS, read_file
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
    out = {}
    for option in OPTIONS:
        value = flags.get(option.field)
        if value is None or (option.kind == "list" and not value):
            continue
        out[option.key] = (tuple(value) if option.kind == "list" else value, option.flag)
    return out


def _read_env(env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {o.key: (_from_text(o, env[o.env]), o.env) for o in OPTIONS if o.env in env}


def _from_text(option: Option, text: str) -> Any:
    """Turn an environment variable's text into the key's type."""
    if option.kind == "list":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if option.kind == "switch":
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise ConfigError(f"{option.env}: {text!r} is not a switch; use true or false")
        return text.lower() in TRUE_WORDS
    if option.kind == "number":
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{option.env}: {text!r} is not a whole number") from None
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
