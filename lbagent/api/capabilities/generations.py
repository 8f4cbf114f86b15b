"""`lbagent history`: what each generation changed, and what caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import NUMBER, TEXT, TEXTS, Capability, Field, ListedFields, Route, Row

if TYPE_CHECKING:
    from lbagent.sync.generation_history import GenerationHistory, PastGeneration


def _newest(history: GenerationHistory, count: str) -> list[PastGeneration]:
    from lbagent.errors import ConfigError

    try:
        number = int(count)
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigError("n must be a whole number, 0 for all")
    return history.newest(number)


def _first_of(row: Row) -> str:
    frontends = row["frontends"]
    more = row["added"] + row["changed"] + row["removed"] - 1
    return f"{frontends[0]} +{more}" if frontends and more > 0 else "".join(frontends[:1])


GENERATIONS: ListedFields[PastGeneration] = ListedFields(
    "GenerationRow",
    (
        Field(
            "generation",
            NUMBER,
            "of the State in force, as in `status`; each agent begins with 1",
            lambda x: x.generation,
            "GENERATION",
        ),
        Field("time", TEXT, "when it was in force: UTC, with milliseconds", lambda x: x.time, "TIME"),
        Field(
            "cause",
            TEXT,
            "`FILE:LINE Kind NAMESPACE/NAME`, `Kind NAMESPACE/NAME`, `set-state BACKEND STATE`, settings",
            lambda x: x.cause,
            "CAUSE",
        ),
        Field("added", NUMBER, "frontends", lambda x: x.added, "ADDED"),
        Field("changed", NUMBER, "frontends", lambda x: x.changed, "CHANGED"),
        Field("removed", NUMBER, "frontends", lambda x: x.removed, "REMOVED"),
        Field(
            "writes",
            NUMBER,
            "map entries written or removed (bpf), transactions (nftables)",
            lambda x: x.writes,
            "WRITES",
        ),
        Field("duration_ms", NUMBER, "of the pass that put it in force", lambda x: x.duration_ms, "MS"),
        Field(
            "frontends",
            TEXTS,
            "the first 16 of them; the column: the first one, and how many more there are",
            lambda x: x.frontends,
            "FRONTENDS",
            _first_of,
        ),
    ),
)
CAPABILITY: Capability[GenerationHistory] = Capability(
    routes=(
        Route(
            "history",
            "GET",
            "/v1/history",
            GENERATIONS,
            "what caused the last `?n=N` generations, the newest first; 0: all that are kept, 1,000 at most",
            _newest,
            query=(("n", "0"),),
        ),
    ),
)
