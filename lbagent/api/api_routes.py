"""Every route of the agent's API: a row says what is sent, what is answered, and who has the answer.

The server answers by this table, AgentClient sends by it, and `python -m tests.docs.tables` writes it into docs/api.md. To add
a route whose answer is a method of the agent: the row, and that method (agent/facade.py); its record is in types.py.

Standard library only, as the command line has 150 ms to start: records are named here, and are defined in types.py.
"""

from __future__ import annotations

from typing import NamedTuple

TEXT = "text"  # the answer is no JSON


class Route(NamedTuple):
    """One route. The parts of its query are all optional; a handler gets their texts in this order, else the record of its body."""

    name: str  # of AgentClient's method
    method: str
    path: str
    answer: str  # a record of types.py, or TEXT
    meaning: str  # what it does and answers, for docs/api.md
    agent: str = ""  # the agent's method that has the answer; '': ApiServer's method `_NAME` makes it of several
    many: bool = False  # the answer is a list of records
    query: tuple[tuple[str, str], ...] = ()  # keys, and what counts where one is left out
    body: str = ""  # a record of types.py


ROUTES = (
    Route(
        "services",
        "GET",
        "/v1/services",
        "FrontendRow",
        "frontends with their backends in the order of their slots. `?namespace=`, `?name=` and "
        "`?vip=ADDRESS[:PORT[/PROTOCOL]]` select",
        many=True,
        query=(("namespace", ""), ("name", ""), ("vip", "")),
    ),
    Route(
        "backends",
        "GET",
        "/v1/backends",
        "BackendRow",
        "backends, each once, with flows that are counted for this answer, and which way its packets take",
        many=True,
    ),
    Route(
        "set_state",
        "PUT",
        "/v1/backends/state",
        "BackendRow",
        "sets a state; the backends that were named, as they are now",
        many=True,
        body="SetState",
    ),
    Route(
        "clear_state",
        "PUT",
        "/v1/backends/clear-state",
        "Cleared",
        "forgets what was set; `cleared`: what had a state, `backends`: as they are now",
        body="ClearState",
    ),
    Route(
        "start_drain",
        "PUT",
        "/v1/backends/drain",
        "BackendRow",
        "sets `maintenance` and begins to drain; the backends that were named, as they are now",
        many=True,
        body="StartDrain",
    ),
    Route(
        "drains",
        "GET",
        "/v1/drains",
        "DrainRow",
        "drains of backends, those that go on first, with flows that are counted for this answer",
        agent="check_drains",
        many=True,
    ),
    Route("status", "GET", "/v1/status", "Status", "how the agent is", agent="status"),
    Route(
        "verify",
        "GET",
        "/v1/verify",
        "Differences",
        "one sentence for each difference of the maps from what the agent wrote and wants; empty when there is none",
    ),
    Route(
        "vips",
        "GET",
        "/v1/vips",
        "VipRow",
        "addresses that are to be announced, with state, node and reason; 404 without `--announce`",
        agent="vips",
        many=True,
    ),
    Route(
        "why_vip",
        "GET",
        "/v1/vips/why",
        "VipAnswer",
        "whether an address `?name=ADDRESS`, or those of a Service `?name=NAMESPACE/NAME`, are announced somewhere, and why",
        agent="why_vip",
        query=(("name", ""),),
    ),
    Route(
        "bgp_peers",
        "GET",
        "/v1/bgp/peers",
        "BgpPeerRow",
        "the BGP sessions of the node, asked of BIRD for this answer; 404 without `--announce`",
        agent="bgp_peers",
        many=True,
    ),
    Route(
        "apilb",
        "GET",
        "/v1/apilb",
        "ApilbRow",
        "the instances of native mode, each with its servers: up or down, since when, the last check, connections of this host; "
        "404 without `--apilb`",
        agent="apilb",
        many=True,
    ),
    Route(
        "wait_change",
        "GET",
        "/v1/wait",
        "Generation",
        "the generation in the maps as soon as it differs from `?generation=N`, at the latest after `?timeout_s=S` seconds "
        "(60 at most)",
        query=(("generation", "0"), ("timeout_s", "30")),
    ),
    Route("metrics", "GET", "/metrics", TEXT, "Prometheus text", agent="metrics"),
)
BY_NAME = {route.name: route for route in ROUTES}
