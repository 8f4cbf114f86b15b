"""The status page, `lbagent ui` and `lbagent top`: the node on one page, once or as a stream of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import TEXT, Capability, Route

if TYPE_CHECKING:
    from lbagent.api.node_summary import NodeSummary, Summary


async def _summary(part: NodeSummary, rows: str) -> Summary:
    from lbagent.api.node_summary import MAX_ROWS
    from lbagent.errors import ConfigError

    if not (rows.isascii() and (rows.isdecimal() or not rows)):
        raise ConfigError("rows must be a whole number, 0 for all")
    return await part.now(int(rows) if rows else MAX_ROWS)


CAPABILITY: Capability[NodeSummary] = Capability(
    routes=(
        Route(
            "summary",
            "GET",
            "/v1/summary",
            "lbagent.api.node_summary:Summary",
            "traffic of services, backends and verdicts, the last changes, what is wrong. `?rows=N` services and backends, those "
            "with most packets first (500 without it and at other addresses, 0: all)",
            _summary,
            query=(("rows", ""),),
            no_store=True,
        ),
        Route(
            "events",
            "GET",
            "/v1/events",
            TEXT,
            "server-sent events: a `Summary` each two seconds; 16 streams at once. An event `trouble` has `error`: one sentence",
            lambda part: part.events.stream(),
            no_store=True,
            is_stream=True,
        ),
    ),
)
