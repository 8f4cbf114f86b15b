"""The configuration's keys as flags: one decorator for the commands that take them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from lbagent.config import Config, Option, load, options
from lbagent.config.option_groups import grouped_options
from lbagent.config.schema import Name
from lbagent.durations import parse_whole_seconds

F = TypeVar("F", bound=Callable[..., Any])
RULE_SETTINGS = (  # that change the rules of manifests, for commands without an agent
    "pod_device", "external_clusterip", "external_ips", "external_ip_cidr", "exclude", "masquerade_all", "reject_rate",
    "max_frontends_per_service", "local_endpoint_weight", "policy_compat",
)  # fmt: skip


def setting_options(*fields: str) -> Callable[[F], F]:
    """Add --config and a flag for each key (or only for these fields); the command gets them as keyword arguments.

    A flag that is not given is None (or ()), so that environment and file set the value.
    """

    def decorate(command: F) -> F:
        for option in reversed([item for item in options() if not fields or item.field in fields]):
            if option.other_name:
                command = _flag(option, option.names[1])(command)
            command = _flag(option, option.names[0])(command)
        return click.option("--config", "file", default="", metavar="FILE", help="YAML file with settings.")(command)

    return decorate


class GroupedCommand(click.Command):
    """A command whose help lists the settings in groups, and its other options last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group of which the command has options."""
        left = {param.name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))}
        for title, group in grouped_options().items():
            names = [name.field for option in group for name in option.names]
            if records := [left.pop(name) for name in names if name in left]:
                with formatter.section(title):
                    formatter.write_dl(records)
        with formatter.section("Options"):
            formatter.write_dl(list(left.values()))


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    """Whole seconds, or a time like 1h30m."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        try:
            return parse_whole_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _flag(option: Option, as_name: Name) -> Callable[[F], F]:
    kinds: dict[str, dict[str, Any]] = {
        "text": {"metavar": "TEXT"},
        "number": {"type": _Seconds(), "metavar": "SECONDS"} if option.unit == "s" else {"type": int, "metavar": "N"},
        "switch": {},
        "list": {"multiple": True, "metavar": "TEXT"},
        "choice": {"type": click.Choice(option.choices)},
    }
    name = f"{as_name.flag}/--no-{as_name.key}" if option.kind == "switch" else as_name.flag
    text = _help(option) if as_name.key == option.key else other_name_help(option)
    return click.option(name, as_name.field, default=None, help=text, **kinds[option.kind])


def other_name_help(option: Option) -> str:
    """Return the help text of kube-proxy's name of a setting."""
    return f"kube-proxy's name of {option.flag}. Give one of the two."


def _help(option: Option) -> str:
    value = ", ".join(option.default) if option.kind == "list" else str(option.default).lower()
    default = f"{value} {option.unit}".rstrip()
    return option.help + ("" if option.default in ("", (), False) else f"  [default: {default}]")


def from_flags(flags: dict[str, Any]) -> Config:
    """Return the configuration of a command's keyword arguments over environment, file and defaults. Raises ConfigError."""
    given = dict(flags)
    return load(given, os.environ, given.pop("file", ""))
