"""`lbagent plan`: prints manifests as the lines of `map dump`, without kernel, root and agent. With --live: what they change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from lbagent.cli.options import agent_pins_option, pins_of_the_agent, socket_option
from lbagent.cli.output import document, printable

if TYPE_CHECKING:
    from lbagent.resolve import Options


class _Share(click.ParamType):  # type: ignore[type-arg]
    """`1%` or a number of flows; the command gets the number, and whether it is a percentage."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, bool]:
        """Return the number."""
        if isinstance(value, tuple):
            return value
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{value!r} is neither a percentage like 1% nor a number of flows", param, ctx)
        return number, text.endswith("%")


class _CommaSeparated(click.types.StringParamType):
    """A text; an environment variable holds several, separated by commas, as the agent's variables do."""

    envvar_list_splitter = ","


@click.command()
@click.option(
    "-f",
    "--manifests",
    "folder",
    required=True,
    metavar="DIR|FILE|-",
    help="Folder or file of manifests; - reads stdin.",
)
@click.option(
    "--node",
    default="",
    envvar="LBAGENT_NODE_NAME",
    metavar="NAME",
    help="Plan for this node (default: the host's name).",
)
@click.option(
    "--node-ip",
    multiple=True,
    metavar="IP",
    help="Address for NodePorts (repeatable; default: those of the Node object).",
)
@click.option(
    "--maglev-table-size",
    type=int,
    default=16381,
    show_default=True,
    metavar="PRIME",
    help="Entries of a Maglev table.",
)
@click.option(
    "--max-frontends-per-service",
    "max_frontends",
    type=click.IntRange(1, 65535),
    default=4096,
    show_default=True,
    envvar="LBAGENT_MAX_FRONTENDS_PER_SERVICE",
    metavar="NUMBER",
    help="Most frontends (address, port and protocol) of one Service; the others are left out and named.",
)
@click.option(
    "--external-ips/--no-external-ips",
    default=True,
    show_default=True,
    envvar="LBAGENT_EXTERNAL_IPS",
    help="Whether externalIPs are served.",
)
@click.option(
    "--external-ip-cidr",
    type=_CommaSeparated(),
    multiple=True,
    envvar="LBAGENT_EXTERNAL_IP_CIDR",
    metavar="CIDR",
    help="Range of the externalIPs that are served; others are named (repeatable; default: all).",
)
@click.option(
    "--exclude",
    type=_CommaSeparated(),
    multiple=True,
    envvar="LBAGENT_EXCLUDE",
    metavar="CIDR[:PORT[/PROTO]]",
    help="Frontends that are left alone (repeatable; IPv6 with a port: [CIDR]:PORT).",
)
@click.option(
    "--ids-from-maps",
    is_flag=True,
    help="Use the ids that frontends and backends have in the pinned maps, so that `diff` with `map dump` shows what differs.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Show what these manifests would change of what is served, and which live flows would end or move; nothing is changed.",
)
@click.option(
    "--max-lost",
    type=_Share(),
    metavar="N%|N",
    help="With --live: exit code 4 where more of the live flows would be lost.",
)
@socket_option
@agent_pins_option
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(("dump", "text", "json", "yaml")),
    help="Format of the output: dump (the default), json, yaml; with --live text (the default), json, yaml.",
)
def plan(
    *,
    folder: str,
    node: str,
    node_ip: tuple[str, ...],
    maglev_table_size: int,
    max_frontends: int,
    external_ips: bool,
    external_ip_cidr: tuple[str, ...],
    exclude: tuple[str, ...],
    ids_from_maps: bool,
    live: bool,
    max_lost: tuple[float, bool] | None,
    socket: str,
    bpffs: str,
    form: str | None,
) -> int:
    """Print the map entries of these manifests, in the form of `map dump`.

    With --live: compare them with what is served, as if they replaced every manifest of the agent. A line is a frontend that
    changes (+ added, ~ updated, - removed), with its live flows: kept; lost, as their frontend or backend goes; moved: UDP that
    goes to another backend. The last line has the sums of all frontends. Without an agent the pinned maps are compared. The
    settings above and the node's name come from the running agent, where they are not given.

    Exit code 0: all input was valid. 1: something was refused (stderr names it) and the rest is printed. 2: wrong usage, or
    no such folder. 4: more flows would be lost than --max-lost. 5: with --live: no agent answers and no maps are pinned.
    """
    from lbagent.targets.bpf.dry_run import KnownIds, dry_run

    form = _form(form, live=live, max_lost=max_lost)
    if live:
        from lbagent.targets.bpf.dry_run import options_of

        options = options_of(
            node,
            node_ip,
            max_frontends,
            external_ips=external_ips,
            external_ip_cidrs=external_ip_cidr,
            exclude=exclude,
        )
        return _live(folder, options, _given(), socket, bpffs, form, max_lost)

    known_ids = KnownIds.of_maps(bpffs or pins_of_the_agent()) if ids_from_maps else KnownIds()
    done = dry_run(
        folder, node_name=node, node_ips=node_ip, maglev_table_size=maglev_table_size, max_frontends=max_frontends,
        known_ids=known_ids, external_ips=external_ips, external_ip_cidrs=external_ip_cidr, exclude=exclude,
    )  # fmt: skip
    for message in done.messages:
        click.echo(str(message), err=True)
    if form == "dump":
        if done.lines:
            click.echo("\n".join(done.lines))
    else:
        from lbagent.api.capabilities.services import SERVICES
        from lbagent.api.json_list import json_list
        from lbagent.api.listed_services import listed_services

        document(json.loads(b"".join(json_list(map(SERVICES.row, listed_services(done.state))))), form)
    return done.exit_code


# --- with --live ---

_SIGNS = {"add": "+", "update": "~", "remove": "-"}
_MAX_NAMED = 3  # backends in a line


def _form(form: str | None, *, live: bool, max_lost: object) -> str:
    """Return the form of the output. Raises UsageError for one that does not fit."""
    if max_lost is not None and not live:
        raise click.UsageError("--max-lost needs --live")
    if form == ("dump" if live else "text"):
        raise click.UsageError(f"-o {form}: use {'text, json or yaml' if live else 'dump, json or yaml'}")
    return form or ("text" if live else "dump")


_OPTION_FIELDS = {
    "external_ips": "external_ips",
    "external_ip_cidr": "external_ip_ranges",
    "max_frontends": "max_frontends",
    "exclude": "exclusions",
}


def _given() -> set[str]:
    """Return the fields of Options that the command line or the environment sets: the agent's settings do not replace them."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return {field for name, field in _OPTION_FIELDS.items() if context.get_parameter_source(name) is not default}


def _live(
    folder: str,
    options: Options,
    given: set[str],
    socket: str,
    bpffs: str,
    form: str,
    max_lost: tuple[float, bool] | None,
) -> int:
    """Print what would change. Raises LbError."""
    import msgspec

    from lbagent.cli.live_state import served_now
    from lbagent.errors import Refused

    now = served_now(socket, bpffs, options, given)
    planned, messages = now.planned(folder)
    for text in (*now.left_out, *messages):
        click.echo(str(text), err=True)
    row = msgspec.to_builtins(planned)
    if form == "text":
        for change in row["changes"]:
            click.echo(_line(change))
        changes, unchanged, flows = len(row["changes"]), row["unchanged"], row["flows"]
        click.echo(f"{_number(changes, 'change')}, {unchanged} unchanged: {_fates(flows)}")
    else:
        document(row, form)
    lost, total = planned.flows.lost, planned.flows.total
    if max_lost is not None and lost > (max_lost[0] * total / 100 if max_lost[1] else max_lost[0]):
        limit = f"{max_lost[0]:g}{'%' if max_lost[1] else ''}"
        raise Refused(f"{lost} of {total} live flows would be lost, more than --max-lost {limit}; nothing was changed")
    return int(any(not message.warning for message in messages))


def _line(change: dict[str, Any]) -> str:
    """Return `~ default/web 172.16.10.1:80/TCP -10.0.0.3:8080/TCP 12 flows: 9 kept, 3 lost (25 %)`."""
    words = [_SIGNS[change["change"]], change["service"], change["frontend"]]
    if change["change"] != "remove":
        words += _named("+", change["backends_added"])
    if change["change"] != "add":
        words += _named("-", change["backends_removed"])
    return printable(" ".join([*words, _fates(change["flows"])]))


def _named(sign: str, backends: list[str]) -> list[str]:
    more = len(backends) - _MAX_NAMED
    return [sign + each for each in backends[:_MAX_NAMED]] + ([f"{sign}{more} more"] if more > 0 else [])


def _fates(flows: dict[str, int]) -> str:
    total = flows["total"]
    if not total:
        return _number(total, "flow")
    parts = [f"{flows['kept']} kept"]
    parts += [f"{flows[word]} {word} ({100 * flows[word] / total:.3g} %)" for word in ("lost", "moved") if flows[word]]
    return f"{_number(total, 'flow')}: {', '.join(parts)}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
