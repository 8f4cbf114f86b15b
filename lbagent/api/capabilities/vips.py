"""`vip list` and `vip why`: the addresses that nodes announce (--announce)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import TEXT, TEXTS, Capability, Field, ListedFields, Route
from lbagent.observe.metric import Metric

if TYPE_CHECKING:
    from lbagent.announce.announcer import Announcer
    from lbagent.announce.vip_rows import VipAnswer, VipRow

OFF = "this agent announces no addresses; start it with --announce FILE, a file of address pools"


def _rows(announcer: Announcer) -> list[VipRow]:
    from lbagent.announce.vip_rows import vip_rows

    return vip_rows(announcer)


def _why(announcer: Announcer, name: str) -> VipAnswer:
    from lbagent.announce.vip_rows import why

    return why(announcer, name)


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
CAPABILITY: Capability[Announcer] = Capability(
    routes=(
        Route(
            "vips",
            "GET",
            "/v1/vips",
            VIPS,
            "addresses that are to be announced, with state, node and reason; 404 without `--announce`",
            _rows,
        ),
        Route(
            "why_vip",
            "GET",
            "/v1/vips/why",
            "lbagent.announce.vip_rows:VipAnswer",
            "whether an address `?name=ADDRESS`, or those of a Service `?name=NAMESPACE/NAME`, are announced somewhere, and why",
            _why,
            query=(("name", ""),),
        ),
    ),
    metrics=(
        Metric(
            "lbagent_vip_announced",
            "gauge",
            "Whether this node announces the address.",
            lambda announcer: (((row.address, row.mode), row.state == "announced") for row in _rows(announcer)),
            ("address", "mode"),
        ),
        Metric(
            "lbagent_vip_takeovers_total",
            "counter",
            "Addresses that this node took over from one that had died.",
            lambda announcer: announcer.takeovers,
        ),
    ),
    off=OFF,
)
