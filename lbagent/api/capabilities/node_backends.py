"""`backend list`, `set-state`, `clear-state`, `drain`: the backends of the node, their states and their drains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lbagent.api.capabilities.services import BACKEND_FIELDS
from lbagent.api.capability import BOOLEAN, NUMBER, OBJECT, TEXT, TEXTS, Capability, Field, ListedFields, Route, Row
from lbagent.observe.metric import Metric, by_word

if TYPE_CHECKING:
    from lbagent.api.backend_details import BackendDetails
    from lbagent.api.backend_requests import BackendRequests
    from lbagent.api.listed_backends import ListedBackend
    from lbagent.api.named_backends import Cleared, ClearState
    from lbagent.model.handshakes import Handshakes

MAX_SERIES = 5000  # flows of so many drains are metrics: `backend list` has them all


def _set_by(row: Row) -> str:
    """Return what says the state: the operator, a BackendState, its check, else the endpoint itself (or its weight 0)."""
    if row.get("set_by"):
        return str(row["set_by"])
    if row["state"] == "active":
        return ""
    if row["state"] == "quarantined" and row.get("check", {}).get("state") == "down":
        return "check"
    return "weight" if row["state"] == "maintenance" and row["weight"] == 0 else "endpoint"


def utc_text(moment: float) -> str:
    """Return a time in seconds since the epoch as tables have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _since(row: Row) -> str:
    return utc_text(row["set_at"]) if row.get("set_at") else ""


def _drain(row: Row) -> str:
    """Return how far the drain of a backend is: `draining 3/12`, flows that are left of those at its start."""
    drain = row.get("drain")
    if not drain:
        return ""
    counted = drain["flows"] >= 0 and drain["state"] != "drained"
    return f"{drain['state']} {drain['flows']}/{drain['flows_at_start']}" if counted else str(drain["state"])


def _check(row: Row) -> str:
    """Return the state of a health check: `up`; `down: connection refused`."""
    check = row.get("check")
    if not check:
        return ""
    return f"{check['state']}: {check['error']}" if check["error"] else str(check["state"])


def _tcp(found: Handshakes | None) -> dict[str, int | None] | None:
    if found is None:
        return None
    return {
        "handshake_p50_us": found.quantile_us(0.5),
        "handshake_p99_us": found.quantile_us(0.99),
        "refused": found.refused,
        "timeout": found.lost,
    }


def time_text(us: int | None) -> str:
    """Return a time as a person reads it: 640us, 12.5ms, 1.2s; '' for none."""
    if us is None:
        return ""
    if us < 1000:
        return f"{us}us"
    return f"{us / 1000:.3g}ms" if us < 1_000_000 else f"{us / 1_000_000:.3g}s"


def _time(row: Row, key: str) -> str:
    return time_text(row.get("tcp", {}).get(key))


_TCP_COLUMNS: tuple[Field[ListedBackend], ...] = (
    Field(
        "",
        TEXT,
        "of `tcp`: half of the handshakes took no longer",
        None,
        "P50",
        lambda row: _time(row, "handshake_p50_us"),
        wide=True,
    ),
    Field(
        "",
        TEXT,
        "of `tcp`: 99 of 100 took no longer",
        None,
        "P99",
        lambda row: _time(row, "handshake_p99_us"),
        wide=True,
    ),
    Field("", TEXT, "of `tcp`", None, "REFUSED", lambda row: row.get("tcp", {}).get("refused", ""), wide=True),
    Field("", TEXT, "of `tcp`", None, "TIMEOUT", lambda row: row.get("tcp", {}).get("timeout", ""), wide=True),
)
BACKENDS: ListedFields[ListedBackend] = ListedFields(
    "BackendRow",
    (
        *(each.replaced(wide=each.key == "zone") for each in BACKEND_FIELDS),
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
            lambda x: x.flows_age_s,
            optional=True,
        ),
        Field(
            "gone",
            BOOLEAN,
            "it is gone from the slices of its Services, of which some keep its flows (`stale-flows`); else left out",
            lambda x: x.backend.gone,
            "GONE",
            lambda row: "gone" if row.get("gone") else "",
            shown_with="gone",
            optional=True,
        ),
        Field(
            "set_by",
            TEXT,
            "what set the state: `operator`, `FILE:LINE` of a BackendState; left out when the endpoint alone says it; the column: "
            "also `check`, `endpoint`, `weight`",
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
            "check",
            OBJECT,
            "its health check: `type`, `state` (`up`, `down`; `none`: not checked yet), `since` (seconds since the epoch), `error`"
            " (of the last check, empty when it succeeded); left out where it is not checked",
            lambda x: x.check,
            "CHECK",
            _check,
            wide=True,
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
        Field(
            "tcp",
            OBJECT,
            "timed handshakes: `handshake_p50_us`, `handshake_p99_us` (null: none was done), `refused`, `timeout`; left out where"
            " none was timed, or with more than 5,000 backends",
            lambda x: _tcp(x.handshakes),
            optional=True,
        ),
        *_TCP_COLUMNS,
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
        "P50",
        "P99",
        "REFUSED",
        "TIMEOUT",
        "CHECK",
        "DRAIN",
        "GONE",
        "SET-BY",
        "SINCE",
    ),
)


async def _cleared(part: BackendRequests, wanted: ClearState) -> Cleared:
    from lbagent.api.named_backends import Cleared

    cleared, backends = await part.clear_state(wanted)
    return Cleared(cleared, list(map(BACKENDS.row, backends)))


async def _details(part: BackendRequests, address: str) -> BackendDetails:
    from lbagent.api.backend_details import details_of

    listed, known = await part.details(address)
    return details_of(BACKENDS.row(listed), known)


CAPABILITY: Capability[BackendRequests] = Capability(
    routes=(
        Route(
            "backends",
            "GET",
            "/v1/backends",
            BACKENDS,
            "backends, each once, with flows that are counted for this answer, and which way its packets take",
            lambda part: part.listed(),
        ),
        Route(
            "backend",
            "GET",
            "/v1/backend",
            "lbagent.api.backend_details:BackendDetails",
            "everything about one backend, `?address=ADDRESS:PORT[/PROTOCOL]`; 404: it is not served",
            _details,
            query=(("address", ""),),
        ),
        Route(
            "set_state",
            "PUT",
            "/v1/backends/state",
            BACKENDS,
            "sets a state; the backends that were named, as they are now",
            lambda part, wanted: part.set_state(wanted),
            body="lbagent.api.named_backends:SetState",
        ),
        Route(
            "clear_state",
            "PUT",
            "/v1/backends/clear-state",
            "lbagent.api.named_backends:Cleared",
            "forgets what was set; `cleared`: what had a state, `backends`: as they are now",
            _cleared,
            body="lbagent.api.named_backends:ClearState",
        ),
        Route(
            "start_drain",
            "PUT",
            "/v1/backends/drain",
            BACKENDS,
            "sets `maintenance` and begins to drain; the backends that were named, as they are now",
            lambda part, wanted: part.start_drain(wanted),
            body="lbagent.api.named_backends:StartDrain",
        ),
        Route(
            "end_flows",
            "PUT",
            "/v1/backends/end-flows",
            BACKENDS,
            "ends the flows of backends that take no new ones: RST to TCP, UDP moves; the backends as they are now",
            lambda part, wanted: part.end_flows(wanted),
            body="lbagent.api.named_backends:EndFlows",
        ),
        Route(
            "drains",
            "GET",
            "/v1/drains",
            "lbagent.api.drains:DrainRow",
            "drains of backends, those that go on first, with flows that are counted for this answer",
            lambda part: part.drains(),
            is_list=True,
        ),
    ),
    metrics=(
        Metric(
            "lbagent_backend_draining_flows",
            "gauge",
            "Flows that are left to a backend that is drained.",
            lambda part: by_word(part.flows_left(MAX_SERIES)),
            ("backend",),
            is_large=True,
        ),
    ),
)
