"""The configuration's keys as flags: one decorator for `agent`, `config` and `doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from lbagent.config import Config, Option, load, options

F = TypeVar("F", bound=Callable[..., Any])


def setting_options(*fields: str) -> Callable[[F], F]:
    """Add --config and a flag for each key (or only for these fields); the command gets them as keyword arguments.

    A flag that is not given is None (or ()), so that environment and file can speak.
    """

    def decorate(command: F) -> F:
        for option in reversed([item for item in options() if not fields or item.field in fields]):
            command = _flag(option)(command)
        return click.option("--config", "file", default="", metavar="FILE", help="YAML file with settings.")(command)

    return decorate


def _flag(option: Option) -> Callable[[F], F]:
    kinds: dict[str, dict[str, Any]] = {
        "text": {"metavar": "TEXT"},
        "number": {"type": int, "metavar": "SECONDS" if option.unit == "s" else "N"},
        "switch": {},
        "list": {"multiple": True, "metavar": "TEXT"},
        "choice": {"type": click.Choice(option.choices)},
    }
    name = f"{option.flag}/--no-{option.key}" if option.kind == "switch" else option.flag
    return click.option(name, option.field, default=None, help=_help(option), **kinds[option.kind])


def _help(option: Option) -> str:
    default = f"{str(option.default).lower()} {option.unit}".rstrip()
    return option.help + ("" if option.default in ("", (), False) else f"  [default: {default}]")


def from_flags(flags: dict[str, Any]) -> Config:
    """Return the configuration of a command's keyword arguments over environment, file and defaults. Raises ConfigError."""
    given = dict(flags)
    return load(given, os.environ, given.pop("file", ""))
