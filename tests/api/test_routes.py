"""The rows of routes: what they name is there, and fits; the client and the server use them."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lbagent.api.capabilities import CAPABILITIES, capability, every_capability, route_of
from lbagent.api.capability import Bound, ListedFields, Route, bind
from lbagent.api.client import AgentClient
from lbagent.api.migration_answers import MigrationRequest
from lbagent.api.named_backends import NamedBackends
from lbagent.api.plane_differences import RepairRequest
from lbagent.api.server import ApiServer
from lbagent.api.shadow_reset import ShadowReset
from lbagent.api.sync_answers import Generation
from lbagent.errors import NotFound
from lbagent.http.http_server import Request
from lbagent.targets.explanation import ExplainRequest
from tests.api.serving import Agent, served

ROUTES = [route for each in every_capability() for route in each.routes]


def test_a_route_is_there_once() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert all(callable(vars(AgentClient)[route.name]) for route in ROUTES)
    assert [route.path for route in ROUTES if route.meaning and not route.path.startswith("/v1/")] == ["/metrics"]


def test_the_client_finds_each_route_by_its_line() -> None:
    """It imports the file of one capability; a word of the table is a route of that file."""
    assert [name for names in CAPABILITIES.values() for name in names] == [route.name for route in ROUTES]
    for file, names in CAPABILITIES.items():
        assert tuple(route.name for route in capability(file).routes) == names
    assert route_of("services") is capability("services").routes[0]


def record_of(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_records_and_handlers(route: Route[Any]) -> None:
    """Records are there; an answer takes the part, and the query or the body."""
    if route.body:
        assert route.method == "PUT"
        assert issubclass(
            record_of(route.body), (ExplainRequest, MigrationRequest, NamedBackends, RepairRequest, ShadowReset)
        )
    assert (
        isinstance(route.record, ListedFields) or route.is_text or issubclass(record_of(route.record), msgspec.Struct)
    )
    assert len(inspect.signature(route.answer).parameters) == 1 + (1 if route.body else len(route.query))


def test_the_client_sends_by_the_table(tmp_path: Path) -> None:
    """Parts of a query go in the table's order or by name; what is empty is not sent."""
    seen: list[Request] = []

    class Recorded(ApiServer):
        async def _answer_of(self, served: Any, request: Request) -> object:
            seen.append(request)
            route = served.route
            return [] if route.many else iter(()) if route.is_text else Generation(7)

    class Everything(Agent):
        def capabilities(self) -> list[Bound]:
            return [bind(each, None) for each in every_capability()]

    path = str(tmp_path / "agent.sock")
    with served(Everything(), path, server=Recorded):
        client = AgentClient(path)
        for route in ROUTES:
            if getattr(AgentClient, route.name).__qualname__.startswith("_method"):
                answer = getattr(client, route.name)(*(key for key, _ in route.query))
                assert answer == ([] if route.many else "" if route.is_text else {"generation": 7})
                assert (seen[-1].method, seen[-1].path) == (route.method, route.path)
                assert seen[-1].query == {key: key for key, _ in route.query}
        client.services(vip="10.0.0.1", name="")
        assert seen[-1].query == {"vip": "10.0.0.1"}
        assert client.wait_change(0, 1.5) == 7
        assert seen[-1].query == {"generation": "0", "timeout_s": "1.5"}
        client.start_drain(["10.0.0.9:8080"], 5.0)
        assert (seen[-1].path, msgspec.json.decode(seen[-1].body)) == (
            "/v1/backends/drain",
            {"addresses": ["10.0.0.9:8080"], "timeout_s": 5.0},
        )
        with pytest.raises(AttributeError, match="svcs"):
            client.svcs()
        with pytest.raises(TypeError, match="services.. takes namespace, name, vip"):
            client.services(port="80")
        with pytest.raises(TypeError, match="status.. takes nothing"):
            client.status("now")


def test_a_capability_that_is_off_has_no_route(tmp_path: Path) -> None:
    """Its words say why; any other path is one that no agent has."""
    path = str(tmp_path / "agent.sock")
    with served(Agent(), path):
        client = AgentClient(path)
        with pytest.raises(NotFound, match="announces no addresses; start it with --announce FILE"):
            client.vips()
        with pytest.raises(NotFound, match="announces no addresses"):
            client.why_vip("192.0.2.1")
        with pytest.raises(NotFound, match="serves no native pools: it was started without --apilb"):
            client.apilb()
