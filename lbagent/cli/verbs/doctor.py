"""`lbagent doctor`: what this machine supports, what will be used, and the conditions of a running agent."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import click

from lbagent.api.client import AgentClient
from lbagent.cli.options import form_option
from lbagent.cli.output import GAP, document
from lbagent.cli.setting_options import from_flags, setting_options
from lbagent.errors import LbError, Unsupported

if TYPE_CHECKING:
    from lbagent.model.check import Finding

UNSUPPORTED = Unsupported.exit_code
ANSWER_S = 2.0  # time for the agent's answer; without one its conditions are left out


@click.command()
@form_option("table", "json", "yaml")
@setting_options(
    "renderer",
    "device",
    "pod_device",
    "attach",
    "bpffs",
    "artifact",
    "snat_ports",
    "snat_address",
    "socket_lb",
    "apilb",
    "cgroup",
    "socket",
)
@click.option("--kubernetes", is_flag=True, help="Also find what kube-proxy left on this node.")
def doctor(form: str, *, kubernetes: bool, **flags: Any) -> int:
    """Check rights, kernel, programs, devices and settings. Nothing is changed.

    If an agent answers at --socket, its conditions follow (as in `lbagent status`): a fault as a warning, a degraded or
    repaired part as a note. They do not change the exit code.

    With --kubernetes also kube-proxy's leftovers: its nftables tables, iptables chains, IPVS device and ports, what each does to
    traffic, and the command that removes it.

    Exit code 0: the agent can run; there may be warnings. 1: there is an error. 3: the only error is a --device that does not
    exist. 77: this kernel is too old, or has no bpf(2).
    """
    from lbagent.checks.table import finding_row, offline_findings

    settings = from_flags(flags)
    found = offline_findings(settings, kubernetes=kubernetes)
    found += conditions(settings.socket, {(each.name, each.subject) for each in found if each.level != "ok"})
    if form == "table":
        for item in found:
            click.echo(f"{item.level:<7}{GAP}{item.text}")
            if item.remedy:
                click.echo(f"{'':<7}{GAP}-> {item.remedy}")
    else:
        document([finding_row(item) for item in found], form)
    codes = {item.exit_code for item in found if item.level == "error"}
    return UNSUPPORTED if UNSUPPORTED in codes else min(codes, default=0)


def conditions(socket: str, shown: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """Yield the conditions of the agent at a socket, without those that are `shown` already (name and subject)."""
    from lbagent.model.check import Finding, Level, Severity

    try:
        status = AgentClient(socket, ANSWER_S).status()
    except LbError:
        return  # no agent runs, or this user may not connect
    for each in status.get("conditions", ()):
        if (each["name"], each["subject"]) not in shown:
            is_fault = each.get("severity", Severity.FAULT) == Severity.FAULT and not each["mended"]
            level = Level.WARNING if is_fault else Level.NOTE
            yield Finding(each["name"], each["subject"], each["text"], each["remedy"], level=level)
