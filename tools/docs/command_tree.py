"""The commands of `lbagent` from click, for the reference and the man pages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

import click

from lbagent.cli.main import CONTEXT, VERBS, cli

WIDTH = 100  # columns of usage lines


class Command(NamedTuple):
    """A command with the words that call it."""

    words: tuple[str, ...]  # ("lbagent", "svc", "list")
    command: click.Command
    context: click.Context

    @property
    def name(self) -> str:
        """The words as a user types them."""
        return " ".join(self.words)

    @property
    def paragraphs(self) -> list[str]:
        """The help text, each paragraph as one line."""
        text = inspect.cleandoc(self.command.help or "").partition("\f")[0]
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]

    @property
    def summary(self) -> str:
        """The first sentence; for a verb the line in `lbagent --help`."""
        if len(self.words) == 2:
            return VERBS[self.words[1]][1]
        return self.command.get_short_help_str(limit=200)

    @property
    def usage(self) -> str:
        """The usage after the words."""
        return " ".join(self.command.collect_usage_pieces(self.context))

    def options(self) -> list[tuple[str, str]]:
        """Each option with its names and metavar, and its help."""
        records = (parameter.get_help_record(self.context) for parameter in self.command.get_params(self.context))
        return [(names, " ".join(text.split())) for names, text in filter(None, records)]

    def commands(self) -> list[Command]:
        """The commands of a group, in the order of its help."""
        if not isinstance(self.command, click.Group):
            return []
        found = (
            (name, self.command.get_command(self.context, name)) for name in self.command.list_commands(self.context)
        )
        return [_command((*self.words, name), command, self.context) for name, command in found if command is not None]


def _command(words: tuple[str, ...], command: click.Command, parent: click.Context | None = None) -> Command:
    context = click.Context(command, parent=parent, info_name=words[-1], terminal_width=WIDTH, **CONTEXT)
    return Command(words, command, context)


def every_command() -> Iterator[Command]:
    """Yield `lbagent` and every command below it, a group before its commands."""
    left = [_command(("lbagent",), cli)]
    while left:
        command = left.pop(0)
        yield command
        left[:0] = command.commands()
