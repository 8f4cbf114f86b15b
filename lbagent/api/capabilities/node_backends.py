"""`backend list`, `set-state`, `clear-state`, `drain`: the backends of the node, their states and their drains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lbagent.api.capabilities.services import BACKEND_FIELDS
from lbagent.api.capability import NUMBER, OBJECT, TEXT, TEXTS, Capability, Field, ListedFields, Route, Row
from lbagent.observe.metric import Metric, by_word

if TYPE_CHECKING:
    from lbagent.api.backend_requests import BackendRequests
    from lbagent.api.listed_backends import ListedBackend
    from lbagent.api.named_backends import Cleared, ClearState

MAX_SERIES = 5000  # flows of so many drains are metrics: `backend list` has them all


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


async def _cleared(part: BackendRequests, wanted: ClearState) -> Cleared:
    from lbagent.api.named_backends import Cleared

    cleared, backends = await part.clear_state(wanted)
    return Cleared(cleared, list(map(BACKENDS.row, backends)))


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
