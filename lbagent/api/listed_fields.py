"""The words of `svc list`, `svc get`, `backend list`, `vip list` and `bgp peers`: one row for key, value and column.

The agent's answer (encode.py), the command line and docs/api.md (`python -m tests.docs.tables`) are made from these rows. A word
is a key of the JSON, a column of the table, or both. Those that may be left out are the last keys; a new word is the last column
unless `columns` of its list names it.

Standard library only, as the command line has 150 ms to start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from lbagent.api.encode import ListedBackend, ListedMember, ListedService
    from lbagent.api.types import BgpPeerRow, VipRow

Item = TypeVar("Item")
Row = dict[str, Any]  # of the JSON
NUMBER, TEXT, BOOLEAN, TEXTS, ROWS, OBJECT = (
    "number",
    "text",
    "true, false",
    "list of texts",
    "list of objects",
    "object",
)


class Field(NamedTuple, Generic[Item]):
    """One word. `value` makes what is in the JSON, `cell` what is in the table where that is something else."""

    key: str  # '': only a column
    kind: str
    meaning: str
    value: Callable[[Item], object] | None
    title: str = ""  # of the column; '': it has none
    cell: Callable[[Row], object] | None = None
    wide: bool = False  # a column of -o wide
    shown_with: str = ""  # of -o wide, and of a table with a row that has this key
    cut: bool = False  # its cells may be cut
    optional: bool = False  # left out of the JSON where it is 0, empty or not known

    def cell_of(self, row: Row) -> object:
        """Return what the table shows."""
        return self.cell(row) if self.cell else row.get(self.key)

    def is_wide(self, rows: Iterable[Row]) -> bool:
        """Return whether the column is one of -o wide alone, in a table of these rows."""
        return self.wide or (self.shown_with != "" and not any(row.get(self.shown_with) for row in rows))


class ListedFields(Generic[Item]):
    """A list: its words in the order of the JSON (optional ones are last there), and the titles of its first columns in theirs."""

    def __init__(self, record: str, fields: Sequence[Field[Item]], columns: Sequence[str]) -> None:
        self.record = record  # what api_routes.py and docs/api.md call it
        self.fields = fields
        self.columns = columns
        self._always = [(each.key, each.value) for each in fields if each.value and not each.optional]
        self._optional = [(each.key, each.value) for each in fields if each.value and each.optional]

    def row(self, item: Item) -> Row:
        """Return the JSON of an item. There are 100,000 of them in a large cluster."""
        out: Row = {key: value(item) for key, value in self._always}
        for key, make in self._optional:
            if value := make(item):
                out[key] = value
        return out

    @property
    def shown(self) -> list[Field[Item]]:
        """The words that have a column, in the order of the columns."""
        place = {title: number for number, title in enumerate(self.columns)}
        return sorted((each for each in self.fields if each.title), key=lambda each: place.get(each.title, len(place)))


def frontend_name(row: Row) -> str:
    """Return the frontend, with `/i` where it is the row for clients inside the cluster."""
    return str(row["frontend"]) + ("/i" if row["scope"] == "internal" else "")


def service_name(row: Row) -> str:
    """Return NAMESPACE/NAME."""
    return f"{row['namespace']}/{row['name']}"


def _selectable_of_all(row: Row) -> str:
    return f"{sum(backend['selectable'] for backend in row['backends'])}/{len(row['backends'])}"


def _selected_state(row: Row) -> str:
    states = {backend["state"] for backend in row["backends"] if backend["selectable"]}
    return "active" if "active" in states else next(iter(sorted(states)), "empty")


def _affinity(row: Row) -> str:
    return f"{row['affinity_timeout_s']}s" if row["affinity_timeout_s"] else ""


def _set_by(row: Row) -> str:
    """Return what says the state: the operator, a BackendState, else the endpoint itself (or its weight 0)."""
    if row.get("set_by"):
        return str(row["set_by"])
    if row["state"] == "active":
        return ""
    return "weight" if row["state"] == "maintenance" and row["weight"] == 0 else "endpoint"


def _since(row: Row) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row["set_at"])) if row.get("set_at") else ""


def _drain(row: Row) -> str:
    """Return how far the drain of a backend is: `draining 3/12`, flows that are left of those at its start."""
    drain = row.get("drain")
    if not drain:
        return ""
    counted = drain["flows"] >= 0 and drain["state"] != "drained"
    return f"{drain['state']} {drain['flows']}/{drain['flows_at_start']}" if counted else str(drain["state"])


MEMBERS: ListedFields[ListedMember] = ListedFields(
    "FrontendBackendRow",
    (
        Field("id", NUMBER, "id of the backend in the maps", lambda x: x.backend.id, "ID"),
        Field("address", TEXT, "`10.0.0.1:8080/TCP`", lambda x: x.backend.address.with_protocol(), "ADDRESS"),
        Field(
            "state",
            TEXT,
            "`active`, `terminating`, `quarantined`, `maintenance`",
            lambda x: x.backend.state.text,
            "STATE",
        ),
        Field("weight", NUMBER, "0: no new flows", lambda x: x.backend.weight, "WEIGHT"),
        Field("node", TEXT, "the node it is on", lambda x: x.backend.node_name, "NODE"),
        Field("zone", TEXT, "the zone of its endpoint", lambda x: x.backend.zone, "ZONE"),
        Field("local", BOOLEAN, "it is on this node", lambda x: x.backend.local, "LOCAL"),
        Field("selectable", BOOLEAN, "new flows of this frontend may take it", lambda x: x.selectable, "SELECTABLE"),
    ),
    ("ID", "ADDRESS", "STATE", "SELECTABLE"),
)
SERVICES: ListedFields[ListedService] = ListedFields(
    "FrontendRow",
    (
        Field("id", NUMBER, "id of the frontend in the maps", lambda x: x.svc.id, "ID"),
        Field("namespace", TEXT, "of the Service", lambda x: x.svc.name.namespace),
        Field("name", TEXT, "of the Service", lambda x: x.svc.name.name, "NAME", service_name, cut=True),
        Field("port_name", TEXT, "name of the Service's port", lambda x: x.svc.port_name, "PORT", wide=True),
        Field(
            "frontend",
            TEXT,
            "`10.96.0.1:80/TCP`",
            lambda x: x.svc.frontend.with_protocol().removesuffix("/i"),
            "FRONTEND",
            frontend_name,
        ),
        Field(
            "scope",
            TEXT,
            "`external`, `internal`: for clients inside the cluster, where they have other backends",
            lambda x: x.svc.frontend.scope.name.lower(),
        ),
        Field("type", TEXT, "type of the Service", lambda x: x.svc.type.value, "TYPE"),
        Field(
            "flags",
            TEXTS,
            "its flags in the maps",
            lambda x: x.flags,
            "FLAGS",
            lambda row: "+".join(row["flags"]),
            wide=True,
        ),
        Field("algorithm", TEXT, "`random`, `maglev`", lambda x: x.svc.algorithm.value, "ALGORITHM", wide=True),
        Field(
            "affinity_timeout_s",
            NUMBER,
            "0: no affinity",
            lambda x: x.svc.affinity_timeout_s,
            "AFFINITY",
            _affinity,
            wide=True,
        ),
        Field(
            "ext_traffic_policy",
            TEXT,
            "`Cluster`, `Local`",
            lambda x: x.svc.ext_traffic_policy.value,
            "EXTERNAL",
            wide=True,
        ),
        Field(
            "int_traffic_policy",
            TEXT,
            "`Cluster`, `Local`",
            lambda x: x.svc.int_traffic_policy.value,
            "INTERNAL",
            wide=True,
        ),
        Field(
            "backends",
            ROWS,
            "`FrontendBackendRow`, in the order of the slots; the column: how many take new flows, of how many",
            lambda x: x.members,
            "BACKENDS",
            _selectable_of_all,
        ),
        Field(
            "source_ranges_policy",
            TEXT,
            "`allow`, `deny`; left out where source ranges are not looked at",
            lambda x: ("deny" if x.svc.source_ranges_deny else "allow") if x.svc.check_source_range else "",
            optional=True,
        ),
        Field(
            "source_ranges",
            TEXTS,
            "192.0.2.0/24, ...; left out where there are none",
            lambda x: list(map(str, x.svc.source_ranges)),
            optional=True,
        ),
        Field(
            "restored",
            BOOLEAN,
            "an earlier agent left it, and no object names it now; left out where it is not so",
            lambda x: x.svc.is_restored,
            optional=True,
        ),
        Field(
            "",
            TEXT,
            "which backends take new flows: `active` ones; `terminating` ones when no other is left; none (`empty`)",
            None,
            "STATE",
            _selected_state,
        ),
    ),
    (
        "ID",
        "FRONTEND",
        "TYPE",
        "BACKENDS",
        "STATE",
        "NAME",
        "PORT",
        "ALGORITHM",
        "AFFINITY",
        "EXTERNAL",
        "INTERNAL",
        "FLAGS",
    ),
)
BACKENDS: ListedFields[ListedBackend] = ListedFields(
    "BackendRow",
    (
        Field("id", NUMBER, "id of the backend in the maps", lambda x: x.backend.id, "ID"),
        Field("address", TEXT, "`10.0.0.1:8080/TCP`", lambda x: x.backend.address.with_protocol(), "ADDRESS"),
        Field(
            "state",
            TEXT,
            "`active`, `terminating`, `quarantined`, `maintenance`",
            lambda x: x.backend.state.text,
            "STATE",
        ),
        Field("weight", NUMBER, "0: no new flows", lambda x: x.backend.weight, "WEIGHT"),
        Field("node", TEXT, "the node it is on", lambda x: x.backend.node_name, "NODE"),
        Field("zone", TEXT, "the zone of its endpoint", lambda x: x.backend.zone, "ZONE", wide=True),
        Field("local", BOOLEAN, "it is on this node", lambda x: x.backend.local, "LOCAL"),
        Field(
            "flows",
            NUMBER,
            "live flows; -1: not counted yet",
            lambda x: x.flow_count,
            "FLOWS",
            lambda row: row["flows"] if row["flows"] >= 0 else "",
        ),
        Field(
            "services",
            TEXTS,
            "`NAMESPACE/NAME` of all that use it, sorted",
            lambda x: sorted(x.services),
            "SERVICES",
            cut=True,
        ),
        Field(
            "flows_age_s",
            NUMBER,
            "how long ago the flows were counted; left out when it was for this answer",
            lambda x: round(x.flows.age_s, 1) if x.flows.live is not None else 0.0,
            optional=True,
        ),
        Field(
            "set_by",
            TEXT,
            "what set the state: `operator`, `FILE:LINE` of a BackendState; left out when the endpoint alone says it; the column: "
            "also `endpoint`, `weight`",
            lambda x: x.set_by.what if x.set_by else "",
            "SET-BY",
            _set_by,
            shown_with="set_by",
            optional=True,
        ),
        Field(
            "set_at",
            NUMBER,
            "since when, in seconds since the epoch; left out when it is not known",
            lambda x: x.set_by.at if x.set_by else 0.0,
            "SINCE",
            _since,
            shown_with="set_by",
            optional=True,
        ),
        Field(
            "way",
            TEXT,
            "of its packets: `stack` (it is on this node), `xdp`, `tc`; left out where none can be sent to it",
            lambda x: x.egress.way,
            "WAY",
            shown_with="way_reason",
            optional=True,
        ),
        Field(
            "device",
            TEXT,
            "by which they leave; left out where `way` is `stack`, and with it",
            lambda x: x.egress.device,
            "DEVICE",
            wide=True,
            optional=True,
        ),
        Field(
            "way_reason",
            TEXT,
            "why `tc`, where XDP programs run; else left out",
            lambda x: x.egress.reason,
            optional=True,
        ),
        Field(
            "drain",
            OBJECT,
            "`DrainProgress`; left out where the backend is not drained",
            lambda x: x.drain,
            "DRAIN",
            _drain,
            shown_with="drain",
            optional=True,
        ),
    ),
    (
        "ID",
        "ADDRESS",
        "STATE",
        "WEIGHT",
        "FLOWS",
        "NODE",
        "LOCAL",
        "SERVICES",
        "ZONE",
        "WAY",
        "DEVICE",
        "DRAIN",
        "SET-BY",
        "SINCE",
    ),
)
VIPS: ListedFields[VipRow] = ListedFields(
    "VipRow",
    (
        Field("address", TEXT, "that is to be announced", lambda x: x.address, "ADDRESS"),
        Field("pool", TEXT, "the pool it is of", lambda x: x.pool, "POOL"),
        Field("mode", TEXT, "`l2`, `bgp`: a row for each", lambda x: x.mode, "MODE"),
        Field(
            "state",
            TEXT,
            "`announced` (by this node), `standby` (by another one, or soon), `conflict`, `withdrawn`",
            lambda x: x.state,
            "STATE",
        ),
        Field("node", TEXT, "that announces it, as far as this one knows", lambda x: x.node, "NODE"),
        Field("services", TEXTS, "`NAMESPACE/NAME`", lambda x: x.services, "SERVICES", cut=True),
        Field("reason", TEXT, "why it is not announced by this node", lambda x: x.reason, "REASON", cut=True),
    ),
    ("ADDRESS", "MODE", "STATE", "NODE", "POOL"),
)
PEERS: ListedFields[BgpPeerRow] = ListedFields(
    "BgpPeerRow",
    (
        Field("address", TEXT, "of the router", lambda x: x.address, "ADDRESS"),
        Field("asn", NUMBER, "its AS number", lambda x: x.asn, "ASN"),
        Field(
            "state",
            TEXT,
            "`established`; `idle`, `connect`, `active`, `opensent`, `openconfirm` (RFC 4271 8.2.2); "
            "`down`: no BIRD, or no session",
            lambda x: x.state,
            "STATE",
        ),
        Field("bfd", TEXT, "`up`, `down`, `init`, `admindown`; `off`: it is not asked for", lambda x: x.bfd, "BFD"),
        Field("advertised", NUMBER, "routes that the router was told", lambda x: x.advertised, "ADVERTISED"),
        Field(
            "reason",
            TEXT,
            "why the session is not established, and what to do; left out when it is",
            lambda x: x.reason,
            "REASON",
            optional=True,
        ),
    ),
    (),
)
LISTS: tuple[ListedFields[Any], ...] = (SERVICES, MEMBERS, BACKENDS, VIPS, PEERS)
