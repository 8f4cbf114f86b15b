"""`lbagent record`: what a bug report needs, in one file; works without an agent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from lbagent.api.client import AgentClient
from lbagent.cli.service_names import ServiceNames
from lbagent.cli.setting_options import from_flags, setting_options
from lbagent.defaults import DEFAULT_BPFFS
from lbagent.errors import LbError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lbagent.agent.node_record import NodeFacts
    from lbagent.config import Config
    from lbagent.model.check import Finding

ASK_S = 5.0


@click.group()
def record() -> None:
    """Record the node for a bug report."""


@record.command()
@click.option("-o", "--output", required=True, metavar="FILE.tar.gz", help="File to write, mode 0600.")
@click.option(
    "--redact", is_flag=True, help="Replace addresses of clients: the same address by the same one everywhere."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE also if it is no record of lbagent.")
@setting_options("renderer", "device", "pod_device", "attach", "bpffs", "snat_ports", "socket", "state_dir")
def dump(*, output: str, redact: bool, overwrite: bool, **flags: Any) -> int:
    """Write a record of this node: events, packets, changes, maps, status, checks. Needs root, and no agent.

    The members of FILE: events.jsonl: the events that are kept, as `lbagent monitor -o json`. packets.pcapng: the first 96 bytes of
    their frames, for Wireshark and tcpdump. changes.jsonl: what caused each generation, the oldest first. maps.dump: as
    `lbagent map dump`. status.json: how the agent is, else its last known status under --state-dir, else null. doctor.json: as
    `lbagent doctor -o json`. No member has payload.

    --redact: frontends, backends and the node's SNAT addresses stay. Every other address gets one of 240.0.0.0/4 or 2001:db8::/32,
    the same one in every member, and its hardware address another one. Checksums over addresses are zero.

    Exit code 1: a part could not be read and is empty (a sentence names it), or FILE cannot be written. 2: FILE is a folder, or a
    file that is no record of lbagent. 3: nothing is pinned, and no agent is known.
    """
    from lbagent.agent.node_record import is_record, node_record
    from lbagent.cli.output_file import replace_whole, require_writable

    config = from_flags(flags)
    require_writable(output, "-o", "record", is_record, overwrite=overwrite)
    facts = _facts(config)
    if config.bpffs == DEFAULT_BPFFS and facts.status:
        config = replace(config, bpffs=str(facts.status.get("bpffs") or DEFAULT_BPFFS))
    made = node_record(config, facts, redact=redact, conditions=lambda found: _conditions(config.socket, found))
    replace_whole(output, made.data)
    click.echo(f"{output}: {len(made.data)} bytes", err=True)
    for problem in made.problems:
        click.echo(problem, err=True)
    return 1 if made.problems else 0


def _facts(config: Config) -> NodeFacts:
    """Return what the agent has, else what an earlier one left in the state folder."""
    from lbagent.agent.node_record import NodeFacts, facts_left

    names = ServiceNames.read(config.socket, config.state_dir)
    client = AgentClient(config.socket, ASK_S)
    try:
        status, changes = client.status(), client.history(0)[::-1]
    except LbError:
        return facts_left(config.state_dir, names.of, names.frontends)
    return NodeFacts(names.of, status, time.time(), changes, names.frontends)


def _conditions(socket: str, found: Sequence[Finding]) -> Iterable[Finding]:
    from lbagent.cli.verbs.doctor import conditions

    return conditions(socket, {(each.name, each.subject) for each in found if each.level != "ok"})
