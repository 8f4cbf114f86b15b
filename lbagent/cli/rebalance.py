"""The work of `backend rebalance`: flows of the pinned maps, counted by backend, and those of over-full backends reset.

Needs root, and an agent for the backends of the Service and their weights.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from lbagent.cli.drain_progress import BAR_CELLS, ERASE_LINE
from lbagent.errors import NotFound, Refused
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.family import Family
from lbagent.model.flow_balance import FlowBalance

if TYPE_CHECKING:
    from lbagent.bpf.run.flow_delete import FlowDeleter
    from lbagent.maps.flow_reader import RawFlow
    from lbagent.maps.pinned_maps import PinnedMaps

Row = dict[str, Any]
ROUND_S = 1.0  # between two looks at the flows: clients connect again meanwhile
LAST_ROUNDS = 5  # at the end, without a flow that may be reset, until clients have connected again
WEIGHTED = frozenset({"maglev", "least-conn"})  # algorithms with which weights apply


@contextmanager
def opened_flows(bpffs: str, *, dry_run: bool) -> Iterator[tuple[PinnedMaps, FlowDeleter | None]]:
    """Open the pins, and load the programs that reset flows unless `dry_run`. Raises as FlowDeleter.of_pins."""
    from lbagent.bpf.run.flow_delete import FlowDeleter
    from lbagent.maps.kernel_maps import KernelMaps
    from lbagent.maps.pinned_maps import PinnedMaps

    with PinnedMaps(bpffs) as maps:
        if dry_run:
            yield maps, None
            return
        with (
            KernelMaps.open(maps.bpffs, create=False) as writable,
            FlowDeleter.of_pins(writable, maps.settings_record(), reset=True, idle_over=0) as deleter,
        ):
            yield maps, deleter


class PortFlows:
    """One port of a Service, of one family: its frontends have the same backends."""

    def __init__(self, rows: list[Row], within: float) -> None:
        """Take the rows of `svc list`; `follow` begins."""
        self.family = Family.of(L3n4Addr.parse(rows[0]["frontend"]).address)
        self.services = {row["id"] for row in rows}
        self.within = within
        self.weights: dict[str, int] = {}
        for row in rows:
            weighted = row["algorithm"] in WEIGHTED
            for each in row["backends"]:
                if each["selectable"]:
                    self.weights[each["address"]] = each["weight"] if weighted else 1
        self.known: dict[bytes, RawFlow] = {}
        self.balance: FlowBalance[str, bytes] | None = None

    def follow(self, found: Mapping[bytes, tuple[RawFlow, str]]) -> FlowBalance[str, bytes]:
        """Take the flows that there are now."""
        self.known = {key: raw for key, (raw, _) in found.items()}
        flows = [(key, backend) for key, (_, backend) in found.items()]
        if self.balance is None:
            self.balance = FlowBalance(self.weights, flows, self.within, random.sample)
        else:
            self.balance.follow(flows)
        return self.balance


def ports_of(rows: list[Row], service: str, within: float) -> list[PortFlows]:
    """Return the ports of TCP. Raises NotFound, Refused."""
    if not rows:
        raise NotFound(f"Service {service} is not served here; see `lbagent svc list`")
    ports: dict[tuple[Family, str, frozenset[str]], list[Row]] = {}
    for row in rows:
        frontend = L3n4Addr.parse(row["frontend"])
        backends = frozenset(each["address"] for each in row["backends"] if each["selectable"])
        if frontend.protocol is L4Type.TCP and backends and row["id"]:
            ports.setdefault((frontend.family, row["port_name"], backends), []).append(row)
    if not ports:
        raise Refused(
            f"Service {service} has no port of TCP with backends: flows of UDP are not reset; nothing was changed"
        )
    if any(row["affinity_timeout_s"] for row in rows):
        raise Refused(
            f"Service {service} has sessionAffinity ClientIP: clients would get the same backend again; nothing was changed"
        )
    return [PortFlows(each, within) for each in ports.values()]


def read_flows(maps: PinnedMaps, ports: list[PortFlows]) -> None:
    """Read the flows of the ports: established ones over TCP, with a backend. Raises KernelError."""
    from lbagent.maps.backend_codec import path_of
    from lbagent.maps.flow_reader import CACHED_ENTRIES, established_tcp, flow_key, raw_flows
    from lbagent.maps.layout import PATH
    from lbagent.maps.map_names import family_map

    for family in {port.family for port in ports}:
        names: dict[int, str] = {}
        size, path_map = PATH[family].size, family_map(family, "path")
        of_service = {ident: port for port in ports if port.family is family for ident in port.services}
        found: dict[int, dict[bytes, tuple[RawFlow, str]]] = {id(port): {} for port in of_service.values()}
        for piece in raw_flows(maps, family, CACHED_ENTRIES):
            for raw in piece:
                port = of_service.get(raw[8])
                ident = established_tcp(raw) if port is not None else 0
                if port is None or not ident:
                    continue
                if ident not in names:
                    with maps.window(path_map, ident * size, size) as view:
                        record = path_of(bytes(view))
                    names[ident] = (
                        L3n4Addr(record.address, record.port, L4Type.TCP).with_protocol() if record.live else ""
                    )
                found[id(port)][flow_key(family, raw)] = raw, names[ident]
        for port in set(of_service.values()):
            port.follow(found[id(port)])


def table_of(ports: list[PortFlows]) -> list[Row]:
    """Return a row for each backend: its flows, its fair share, its limit and how many are too many."""
    rows = []
    for port in ports:
        balance = port.balance
        assert balance is not None
        excess = balance.excess()
        rows += [
            {
                "address": address,
                "flows": balance.counts[address],
                "share": round(share, 1),
                "limit": balance.limits[address],
                "to_reset": excess.get(address, 0),
            }
            for address, share in balance.shares.items()
        ]
    return rows


class Rebalancing:
    """One run of the command."""

    def __init__(self, maps: PinnedMaps, deleter: FlowDeleter, ports: list[PortFlows]) -> None:
        """Flows of `ports` were read."""
        self._maps, self._deleter, self._ports = maps, deleter, ports
        self.reset: dict[str, int] = {}  # by backend

    def run(self, rate: float) -> Iterator[list[Row]]:
        """Reset flows, at most `rate` a second; yield the rows after each change, until all backends are within."""
        idle = 0
        while any(row["to_reset"] for row in table_of(self._ports)):
            began, done = time.monotonic(), 0
            period = max(ROUND_S, 1 / rate)
            most = max(1, int(rate * period))
            for port in self._ports:
                done += self._reset(port, most - done, rate)
            if done:
                idle = 0
                yield table_of(self._ports)
            elif (idle := idle + 1) > LAST_ROUNDS:
                return
            time.sleep(max(0.0, began + max(period, done / rate) - time.monotonic()))
            read_flows(self._maps, self._ports)
        yield table_of(self._ports)

    def _reset(self, port: PortFlows, most: int, rate: float) -> int:
        balance = port.balance
        assert balance is not None
        done = 0
        for key in balance.next_flows(most) if most > 0 else ():
            backend = balance.backend_of(key)
            if self._deleter.delete(port.family, [port.known[key]]):
                balance.were_reset([key])
                self.reset[backend] = self.reset.get(backend, 0) + 1
                done += 1
                time.sleep(min(ROUND_S, 1 / rate) / 2)  # they come back one after the other
        return done


class RebalanceReport:
    """Prints how far it is: a bar on a terminal, else a line for each change; with `json` lines of JSON on stdout."""

    def __init__(self, form: str, to_reset: int) -> None:
        self._is_json = form == "json"
        self._has_bar = form == "text" and sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
        self._at_start = to_reset
        self._is_bar_open = False
        self._lines: dict[str, tuple[int, int]] = {}

    def show(self, rows: list[Row], reset: Mapping[str, int]) -> None:
        """Show the backends as they are now."""
        left = sum(row["to_reset"] for row in rows)
        if self._has_bar:
            self._bar(left, sum(reset.values()))
            return
        for row in rows:
            address, count = row["address"], reset.get(row["address"], 0)
            if self._lines.get(address, (row["flows"], 0)) == (row["flows"], count) and (
                address in self._lines or not row["to_reset"]
            ):
                continue
            self._lines[address] = row["flows"], count
            state = "over" if row["to_reset"] else "within"
            if self._is_json:
                line = {key: row[key] for key in ("address", "flows", "share")} | {"reset": count, "state": state}
                click.echo(json.dumps(line))
            else:
                click.echo(f"{address}: {row['flows']} flows, share {row['share']:g}, {count} reset, {state}", err=True)

    def _bar(self, left: int, reset: int) -> None:
        done = BAR_CELLS * max(0, self._at_start - left) // max(1, self._at_start)
        text = f"[{'#' * done}{'.' * (BAR_CELLS - done)}] {left} flows too many, {reset} reset"
        click.echo(f"{ERASE_LINE}{text[: max(1, shutil.get_terminal_size().columns - 1)]}", err=True, nl=False)
        self._is_bar_open = True

    def end_bar(self) -> None:
        """End the line of the bar."""
        if self._is_bar_open:
            self._is_bar_open = False
            click.echo("", err=True)
