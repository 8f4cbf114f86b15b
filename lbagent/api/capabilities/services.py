"""`svc list` and `svc get`: the frontends in the maps, with the backends behind each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import BOOLEAN, NUMBER, ROWS, TEXT, TEXTS, Capability, Field, ListedFields, Route, Row

if TYPE_CHECKING:
    from lbagent.api.listed_backends import ListedBackend
    from lbagent.api.listed_services import ListedMember, ListedService, ServedServices


def frontend_name(row: Row) -> str:
    """Return the frontend, with `/i` where it is the row for clients inside the cluster."""
    return str(row["frontend"]) + ("/i" if row["scope"] == "internal" else "")


def service_name(row: Row) -> str:
    """Return NAMESPACE/NAME."""
    return f"{row['namespace']}/{row['name']}"


def _selectable_of_all(row: Row) -> str:
    return f"{sum(backend['selectable'] for backend in row['backends'])}/{len(row['backends'])}"


def _selected_state(row: Row) -> str:
    if row.get("l7_proxy_port"):
        return "proxy"
    states = {backend["state"] for backend in row["backends"] if backend["selectable"]}
    return "active" if "active" in states else next(iter(sorted(states)), "empty")


def _affinity(row: Row) -> str:
    return f"{row['affinity_timeout_s']}s" if row["affinity_timeout_s"] else ""


BACKEND_FIELDS: tuple[Field[ListedMember | ListedBackend], ...] = (  # of a backend, in every list
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
)
MEMBERS: ListedFields[ListedMember] = ListedFields(
    "FrontendBackendRow",
    (
        *BACKEND_FIELDS,
        Field("selectable", BOOLEAN, "new flows of this frontend may take it", lambda x: x.selectable, "SELECTABLE"),
        Field(
            "gone",
            BOOLEAN,
            "it is gone from the slices of the Service, which keeps its flows (`stale-flows`); else left out",
            lambda x: x.backend.gone,
            optional=True,
        ),
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
            lambda x: "internal" if x.svc.frontend.scope else "external",
        ),
        Field("type", TEXT, "type of the Service", lambda x: x.svc.type, "TYPE"),
        Field(
            "flags",
            TEXTS,
            "its flags in the maps",
            lambda x: x.flags,
            "FLAGS",
            lambda row: "+".join(row["flags"]),
            wide=True,
        ),
        Field("algorithm", TEXT, "`random`, `maglev`", lambda x: x.svc.algorithm, "ALGORITHM", wide=True),
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
            "stale_flows",
            TEXT,
            "`keep`, `drain=SECONDS`: what happens to flows whose backend is gone; left out for `reset`",
            lambda x: x.svc.stale_flows,
            "STALE",
            lambda row: row.get("stale_flows", ""),
            wide=True,
            optional=True,
        ),
        Field(
            "l7_proxy_port",
            NUMBER,
            "port of the L7 proxy on this node that gets the packets; left out where there is none",
            lambda x: x.svc.l7_lb_proxy_port,
            optional=True,
        ),
        Field(
            "ext_traffic_policy",
            TEXT,
            "`Cluster`, `Local`",
            lambda x: x.svc.ext_traffic_policy,
            "EXTERNAL",
            wide=True,
        ),
        Field(
            "int_traffic_policy",
            TEXT,
            "`Cluster`, `Local`",
            lambda x: x.svc.int_traffic_policy,
            "INTERNAL",
            wide=True,
        ),
        Field(
            "backends",
            ROWS,
            "`FrontendBackendRow`, in the order of the slots; the column: how many take new flows, of how many",
            lambda x: list(map(MEMBERS.row, x.members)),
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
            "which backends take new flows: `active` ones; `terminating` ones when no other is left; none (`empty`); an L7 "
            "`proxy` does",
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
        "STALE",
        "PORT",
        "ALGORITHM",
        "AFFINITY",
        "EXTERNAL",
        "INTERNAL",
        "FLAGS",
    ),
)
CAPABILITY: Capability[ServedServices] = Capability(
    routes=(
        Route(
            "services",
            "GET",
            "/v1/services",
            SERVICES,
            "frontends with their backends in the order of their slots. `?namespace=`, `?name=` and "
            "`?vip=ADDRESS[:PORT[/PROTOCOL]]` select",
            lambda part, namespace, name, vip: part.listed(namespace, name, vip),
            query=(("namespace", ""), ("name", ""), ("vip", "")),
        ),
    ),
)
