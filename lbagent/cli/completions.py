"""What a shell offers for words of lbagent: services, frontends, backends, nodes of the agent, devices, reasons, data planes.

A table by option, and by argument of a command: every command with an option of that name has its completions. Without an agent
nothing is offered. It is applied only while a shell requests completions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import click

from lbagent.api.client import AgentClient
from lbagent.errors import LbError

Words = Callable[[AgentClient], Iterable[str]]
ANSWER_S = 2.0
DEVICES = "/sys/class/net"


def _services(client: AgentClient) -> Iterable[str]:
    return (f"{row['namespace']}/{row['name']}" for row in client.services())


def _namespaces(client: AgentClient) -> Iterable[str]:
    return (row["namespace"] for row in client.services())


def _frontends(client: AgentClient) -> Iterable[str]:
    return (row["frontend"] for row in client.services())


def _backends(client: AgentClient) -> Iterable[str]:
    return (row["address"] for row in client.backends())


def _nodes(client: AgentClient) -> Iterable[str]:
    return sorted({row["node"] for row in client.backends() if row["node"]})


def _vips(client: AgentClient) -> Iterable[str]:
    rows = client.vips()
    return (*(row["address"] for row in rows), *_services(client))


def _devices(_client: AgentClient) -> Iterable[str]:
    return sorted(os.listdir(DEVICES))


def _reasons(_client: AgentClient) -> Iterable[str]:
    from lbagent.maps.reasons import Reason, label

    return (label(reason) for reason in Reason if reason)


def _verdicts(_client: AgentClient) -> Iterable[str]:
    from lbagent.maps.reasons import VERDICTS

    return VERDICTS


def _renderers(_client: AgentClient) -> Iterable[str]:
    from lbagent.render.renderer_names import names

    return names()


OPTIONS: dict[str, Words] = {
    "--service": _services,
    "--namespace": _namespaces,
    "--frontend": _frontends,
    "--backend": _backends,
    "--node": _nodes,
    "--device": _devices,
    "--reason": _reasons,
    "--verdict": _verdicts,
    "--renderer": _renderers,
}
ARGUMENTS: dict[tuple[str, str], Words] = {  # by name of the command and of the argument
    ("why", "name"): _vips,
    ("explain", "destination"): _frontends,
    ("get", "frontend"): _frontends,
}
LISTS = ("--reason", "--verdict")  # options whose values are words with commas between them


def add_completions(command: click.Command) -> click.Command:
    """Give the options and arguments of a command, and of those below it, the completions of the tables."""
    for parameter in command.params:
        flag = next((flag for flag in parameter.opts if flag in OPTIONS), "")
        words = OPTIONS.get(flag) or ARGUMENTS.get((command.name or "", parameter.name or ""))
        if words is not None and not isinstance(parameter.type, click.Choice):
            parameter.shell_complete = _completer(words, is_list=flag in LISTS)  # type: ignore[method-assign, assignment]
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_completions(below)
    return command


def _completer(words: Words, *, is_list: bool) -> Callable[[click.Context, str], list[Any]]:
    def complete(ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",") if is_list else ("", "", incomplete)
        try:
            found = list(dict.fromkeys(words(AgentClient(ctx.params.get("socket") or "", timeout_s=ANSWER_S))))
        except (LbError, OSError):
            return []
        return [CompletionItem(before + comma + word) for word in found if word.startswith(last)]

    return complete
