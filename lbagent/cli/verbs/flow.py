"""`lbagent flow`: the flows in the kernel's maps, read from the pins; works without an agent."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from lbagent.cli import output
from lbagent.cli.options import (
    FITTING,
    filter_options,
    form_option,
    limit_option,
    pins_option,
    socket_option,
    state_dir_option,
)
from lbagent.cli.output import FORMATS, Column, Listing, Row, Style
from lbagent.cli.service_names import ServiceNames
from lbagent.errors import ConfigError, NotFound
from lbagent.partial_imports import put_in_place

if TYPE_CHECKING:
    from lbagent.maps.flow_filter import FlowFilter
    from lbagent.maps.flow_lines import FlowLines
    from lbagent.maps.flow_reader import RawFlow
    from lbagent.maps.pinned_maps import PinnedMaps
    from lbagent.maps.socket_flows import SocketFlow
    from lbagent.model.family import Family

TWO_PROCESSES_FROM = 1 << 18  # entries of a table: a fork costs as much as the reading of some ten thousand
PASSES = 20  # of a deletion: a flow that changes while it is deleted is read again
KEYS = ("service", "backend", "client", "state", "proto")


def _idle(row: Row) -> str:
    return "-" if row["idle_s"] is None else f"{row['idle_s']}s"


LISTING = Listing(
    (
        Column("PROTO", lambda row: row["protocol"]),
        Column("CLIENT", lambda row: row["client"]),
        Column("FRONTEND", lambda row: row["frontend"].rpartition("/")[0]),
        Column("BACKEND", lambda row: row["backend"] and row["backend"].rpartition("/")[0]),
        Column("STATE", lambda row: row["state"]),
        Column("IDLE", _idle),
        Column("SERVICE", lambda row: row["service"], cut=True),
        Column("MODE", lambda row: row["mode"], wide=True),
        Column("SNAT", lambda row: row["snat"], wide=True),
        Column("EXPIRES", lambda row: "-" if row["expires_in_s"] is None else f"{row['expires_in_s']}s", wide=True),
        Column("SPILLED", lambda row: row["spilled"], wide=True),
        Column("ID", lambda row: row["backend_id"], wide=True),
    ),
    name=lambda row: f"{row['client'] or '-'} {row['frontend']}",
    key=lambda row: (row["client"], row["frontend"]),
)
COUNTS = (Column("KEY", lambda row: row["key"]), Column("FLOWS", lambda row: row["flows"]))


@click.group()
def flow() -> None:
    """List, count and delete flows, as the maps have them. All but delete need no agent."""


# --- reading ---


@contextmanager
def _reading(bpffs: str, names: ServiceNames, *, needs_clock: bool) -> Iterator[tuple[PinnedMaps, FlowLines]]:
    """Open the pins. Raises NotFound, LayoutMismatch, KernelError."""
    from lbagent.maps.flow_lines import FlowLines
    from lbagent.maps.flow_settings import flow_settings, ticks_now
    from lbagent.maps.pinned_maps import PinnedMaps

    is_collecting = gc.isenabled()
    gc.disable()  # a million short-lived objects, and no cycles
    try:
        with PinnedMaps(bpffs) as maps:
            settings = flow_settings(maps.settings_record())
            yield maps, FlowLines(maps, settings, ticks_now(settings, is_needed=needs_clock), names.of)
    finally:
        if is_collecting:
            gc.enable()


def _texts(
    maps: PinnedMaps, texts: FlowLines, wanted: FlowFilter, limit: int | None, between: str = "\n"
) -> Iterator[str]:
    """Yield the JSON objects of the flows that the filter selects, some in each text, with `between` between them."""
    from lbagent.cli.two_processes import in_two_processes
    from lbagent.maps.flow_reader import CACHED_ENTRIES, raw_flows, raw_spilled_flows, table_flows, table_size

    left = sys.maxsize if limit is None else limit
    for family in wanted.families:
        select, lines_of = texts.selects(wanted, family), texts.lines_of(family)

        def lines(piece: Sequence[RawFlow], select: Any = select, lines_of: Any = lines_of) -> list[str]:
            found: list[str] = lines_of(piece if select is None else filter(select, piece))
            return found

        def of_table(part: int, parts: int, family: Family = family, lines: Any = lines) -> Iterator[str]:
            for piece in table_flows(maps, family, CACHED_ENTRIES, part, parts):
                yield between.join(lines(piece))

        if limit is None:
            is_large = table_size(maps, family) >= TWO_PROCESSES_FROM
            yield from filter(None, in_two_processes(of_table, "the flows") if is_large else of_table(0, 1))
            if spilled := lines(raw_spilled_flows(maps, family)):
                yield between.join(spilled)
            continue
        for piece in raw_flows(maps, family, CACHED_ENTRIES):
            if found := lines(piece)[:left]:
                yield between.join(found)
                left -= len(found)
            if not left:
                return
    if found := [each.line(texts.name_of) for each in _sockets(maps, texts, wanted)][:left]:
        yield between.join(found)


def _sockets(maps: PinnedMaps, texts: FlowLines, wanted: FlowFilter) -> list[SocketFlow]:
    """Return the flows of the socket programs that the filter selects; warns where the kernel does not list their sockets."""
    from lbagent.maps.socket_flows import LEFT_OUT, socket_flows_here

    found = socket_flows_here(maps, texts.settings.netns_cookie)
    if found is None:
        click.echo(LEFT_OUT, err=True)
    return [each for each in found or () if each.is_selected(wanted, texts.name_of)]


@flow.command("list")
@filter_options
@limit_option("flows")
@pins_option
@socket_option
@state_dir_option
@form_option(*FORMATS, "jsonl", text=FITTING + " jsonl: one JSON object a line.")
@click.option("--no-headers", is_flag=True, help="Print no header line.")
@click.option("--sort-by", default="", metavar="COLUMN", help="Sort by this column or JSON field.")
def list_(
    wanted: FlowFilter,
    limit: int | None,
    bpffs: str,
    socket: str,
    state_dir: str,
    form: str,
    no_headers: bool,
    sort_by: str,
) -> None:
    """List flows, in the order of the tables: IPv4, IPv6, then those of the socket programs.

    IDLE: time since the last packet. A flow that has expired stays until the next sweep. `-o wide` adds: MODE: how its packets
    reach the backend; SNAT: the node's address and port that the backend sees; EXPIRES: when it ends without another packet;
    SPILLED: whether it is in the spill map; ID: of the backend.

    SERVICE is `-` (null) if the frontend belongs to no Service, or if no agent answers and the file of frontend owners under
    --state-dir does not name it.
    """
    names = ServiceNames.read(socket, state_dir, service=wanted.service)
    names.require(wanted.service)
    with _reading(bpffs, names, needs_clock=wanted.idle_over_s is not None) as (maps, texts):
        if form in ("json", "jsonl") and not sort_by:
            between = ",\n" if form == "json" else "\n"
            _write(_texts(maps, texts, wanted, limit, between), between)
            return
        rows = [json.loads(line) for text in _texts(maps, texts, wanted, limit) for line in text.split("\n")]
    rows = output.sort_rows(LISTING, rows, sort_by)
    if form in ("json", "jsonl"):
        between = ",\n" if form == "json" else "\n"
        _write((json.dumps(row, separators=(",", ":")) for row in rows), between)
        return
    output.show(LISTING, rows, Style(form, not no_headers))
    if not rows and form in ("table", "wide") and not wanted.is_empty:
        click.echo("no flow is selected", err=True)


def _write(texts: Iterator[str], between: str) -> None:
    """Write JSON objects, one a line; with a comma between them as an array."""
    write, is_array = sys.stdout.write, between.startswith(",")
    is_empty = True
    for text in texts:
        write(between if not is_empty else "[\n" if is_array else "")
        write(text)
        is_empty = False
    if is_array:
        write("[]\n" if is_empty else "\n]\n")
    elif not is_empty:
        write("\n")


@flow.command()
@click.argument("client", metavar="CLIENT")
@click.argument("frontend", metavar="FRONTEND")
@pins_option
@socket_option
@state_dir_option
@form_option(*FORMATS, text=FITTING)
def get(client: str, frontend: str, bpffs: str, socket: str, state_dir: str, form: str) -> None:
    """Show the flow from CLIENT (ADDRESS:PORT) to FRONTEND (ADDRESS:PORT[/PROTOCOL]).

    Without a protocol it is the first flow found of TCP, UDP and SCTP. Columns as in `flow list`; JSON and YAML are one object.

    Exit code 3: there is no such flow.
    """
    put_in_place("lbagent.model")
    from lbagent.maps.flow_filter import endpoint

    ends = endpoint("CLIENT", client, needs_port=True), endpoint("FRONTEND", frontend, needs_port=True)
    if ends[0].l4 is not None:
        raise ConfigError(f"CLIENT {client}: give the protocol with the frontend")
    if ends[0].family is not ends[1].family:
        raise ConfigError(f"CLIENT is IPv{ends[0].family} and FRONTEND is IPv{ends[1].family}: no flow has both")
    names = ServiceNames.read(socket, state_dir, vip=frontend)
    with _reading(bpffs, names, needs_clock=False) as (maps, texts):
        line = _found(maps, texts, *ends)
    if line is None:
        raise NotFound(f"no flow from {client} to {frontend}; see `lbagent flow list --client {client}`")
    row = json.loads(line)
    if form in ("json", "yaml"):
        output.document(row, form)
    else:
        output.show(LISTING, [row], Style(form))


def _found(maps: PinnedMaps, texts: FlowLines, client: Any, frontend: Any) -> str | None:
    """Return the JSON object of the flow between two AddressFilters, of the table, the spill map or a socket; None: no flow."""
    from lbagent.maps.flow_filter import FlowFilter
    from lbagent.maps.flow_hash import FlowEnd
    from lbagent.maps.flow_reader import find_flow
    from lbagent.maps.layout import PathL4

    ends = FlowEnd(client.address, client.port), FlowEnd(frontend.address, frontend.port)
    for l4 in (PathL4.TCP, PathL4.UDP, PathL4.SCTP) if frontend.l4 is None else (frontend.l4,):
        if raw := find_flow(maps, *ends, l4, texts.settings.seeds):
            return texts.lines_of(frontend.family)([raw])[0]
    wanted = FlowFilter(client=client, frontend=frontend, families=(frontend.family,))
    return next((each.line(texts.name_of) for each in _sockets(maps, texts, wanted)), None)


@flow.command()
@filter_options
@click.option("--by", type=click.Choice(KEYS), help="Count by this: a line for each, most flows first.")
@limit_option("lines of --by")
@pins_option
@socket_option
@state_dir_option
@form_option("text", "json", "yaml")
def count(
    wanted: FlowFilter, by: str | None, limit: int | None, bpffs: str, socket: str, state_dir: str, form: str
) -> None:
    """Count flows. Closing ones count only with `--state closing`, those without a backend never.

    -o json: `{"flows": N}`; with --by a list of `{"key": ..., "flows": N}`.
    """
    from lbagent.maps.flow_counts import count_by, count_flows

    if limit is not None and not by:
        raise ConfigError("--limit is for --by: a count has no other lines")
    needs_names = by == "service" or wanted.service
    names = ServiceNames.read(socket, state_dir, service=wanted.service) if needs_names else ServiceNames()
    names.require(wanted.service)
    with _reading(bpffs, names, needs_clock=wanted.idle_over_s is not None) as (maps, texts):
        sockets = [each for each in _sockets(maps, texts, wanted) if each.is_live or wanted.state is not None]
        if not by:
            flows = count_flows(maps, texts, wanted) + len(sockets)
            if form == "text":
                click.echo(flows)
            else:
                output.document({"flows": flows}, form)
            return
        found = count_by(maps, texts, wanted, by, sockets)
    ordered = sorted(found.items(), key=lambda item: (-item[1], output.natural(item[0])))[:limit]
    rows = [{"key": key, "flows": flows} for key, flows in ordered]
    if form == "text":
        click.echo("\n".join(output.table(COUNTS, rows, wide=False, headers=True)))
    else:
        output.document(rows, form)


@flow.command()
@filter_options
@click.option("--all", "all_flows", is_flag=True, help="Delete every flow; without it a filter is needed.")
@limit_option("flows")
@click.option("--dry-run", is_flag=True, help="Delete nothing; print how many flows are selected.")
@click.option("--reset", is_flag=True, help="Answer the next packet of each TCP client with RST.")
@pins_option
@socket_option
@state_dir_option
@form_option("text", "json", "yaml")
def delete(
    wanted: FlowFilter,
    all_flows: bool,
    limit: int | None,
    dry_run: bool,
    reset: bool,
    bpffs: str,
    socket: str,
    state_dir: str,
    form: str,
) -> int:
    """Delete the flows that the filter selects, with their SNAT ports. Needs root, and no agent.

    The next packet of a deleted flow is that of a new one: another backend may get it, and resets a connection that it does not
    have. With --reset the client of a TCP flow gets RST for its next packet, except for a SYN, which opens a new connection.

    A flow is deleted only if it is as it was read: one that takes its place stays. Flows of the socket programs stay: they are
    connections of the kernel.

    Flows that begin while the command runs may stay.

    -o json: `{"deleted": N}`. Exit code 1: some of the flows changed each time they were to be deleted, and stay.
    """
    if wanted.is_empty and not all_flows:
        raise ConfigError("give a filter, or --all for every flow; nothing was deleted")
    names = ServiceNames.read(socket, state_dir, service=wanted.service) if wanted.service else ServiceNames()
    names.require(wanted.service)
    with _reading(bpffs, names, needs_clock=wanted.idle_over_s is not None) as (maps, texts):
        deleted, left = _delete(maps, texts, wanted, limit, dry_run=dry_run, reset=reset)
    if form == "text":
        click.echo(f"{deleted} flows {'are selected' if dry_run else 'deleted'}")
    else:
        output.document({"deleted": deleted} | ({"dry_run": True} if dry_run else {}), form)
    if left:
        click.echo(f"{left} flows changed meanwhile and stay; try again", err=True)
    return 1 if left else 0


def _delete(
    maps: PinnedMaps, texts: FlowLines, wanted: FlowFilter, limit: int | None, *, dry_run: bool, reset: bool
) -> tuple[int, int]:
    """Return how many flows were deleted, and how many changed each time. Raises as FlowDeleter.of_pins."""
    from lbagent.bpf.run.flow_delete import FlowDeleter
    from lbagent.maps.flow_reader import flow_key
    from lbagent.maps.kernel_maps import KernelMaps

    deleted = left = 0
    if dry_run:
        for family in wanted.families:
            room = None if limit is None else limit - deleted
            deleted += len(_chosen(maps, texts, wanted, family, room, reset=reset))
        return deleted, 0
    idle_over = texts.settings.ticks_over(wanted.idle_over_s)
    with (
        KernelMaps.open(maps.bpffs, create=False) as writable,
        FlowDeleter.of_pins(writable, maps.settings_record(), reset=reset, idle_over=idle_over) as deleter,
    ):
        for family in wanted.families:
            room = None if limit is None else limit - deleted
            chosen = _chosen(maps, texts, wanted, family, room, reset=reset)
            done = deleter.delete(family, chosen)
            deleted += done
            asked = {flow_key(family, raw) for raw in chosen} if done < len(chosen) else set()
            for _ in range(PASSES):
                if done == len(chosen):
                    break
                found = _chosen(maps, texts, wanted, family, None, reset=reset)
                chosen = [raw for raw in found if flow_key(family, raw) in asked]  # not what began since
                done = deleter.delete(family, chosen)
                deleted += done
            left += len(chosen) - done
    return deleted, left


def _chosen(
    maps: PinnedMaps, texts: FlowLines, wanted: FlowFilter, family: Family, limit: int | None, *, reset: bool
) -> list[RawFlow]:
    """Return the flows to delete. A flow without a backend has been reset, or gets RST anyway."""
    from lbagent.maps.flow_reader import CACHED_ENTRIES, has_backend, raw_flows

    select = texts.selects(wanted, family)
    chosen: list[RawFlow] = []
    for piece in raw_flows(maps, family, CACHED_ENTRIES):
        found = piece if select is None else filter(select, piece)
        chosen += [raw for raw in found if not reset or has_backend(raw)]
        if limit is not None and len(chosen) >= limit:
            return chosen[:limit]
    return chosen
