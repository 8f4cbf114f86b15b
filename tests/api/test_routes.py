"""The table of routes: what it names is there, and fits."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from lbagent.agent.facade import AgentFacade
from lbagent.api import types
from lbagent.api.api_routes import ROUTES, TEXT, Route
from lbagent.api.client import AgentClient
from lbagent.api.listed_fields import LISTS
from lbagent.api.server import ApiServer
from lbagent.http.http_server import Request
from tests.api.serving import Agent, served

SEQUENCES = (list, Sequence, Collection, Iterable)


def test_a_route_is_there_once() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert all(callable(vars(AgentClient)[route.name]) for route in ROUTES)
    assert [route.path for route in ROUTES if route.meaning and not route.path.startswith("/v1/")] == ["/metrics"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_records_and_handlers(route: Route) -> None:
    """Records are those of types.py; a method of the agent takes the query and returns the record, or a list of it."""
    if route.body:
        assert route.method == "PUT"
        assert issubclass(getattr(types, route.body), types.NamedBackends)
    if not route.agent:
        assert callable(getattr(ApiServer, f"_{route.name}"))
        assert hasattr(types, route.answer) or route.answer in {each.record for each in LISTS}
        return
    hints = typing.get_type_hints(getattr(AgentFacade, route.agent))
    answer = hints.pop("return")
    assert len(hints) == (1 if route.body else len(route.query))
    if route.answer == TEXT:
        assert answer == Iterable[str]
    elif route.many:
        assert typing.get_origin(answer) in SEQUENCES
        assert typing.get_args(answer) == (getattr(types, route.answer),)
    else:
        assert answer is getattr(types, route.answer)


def test_the_client_sends_by_the_table(tmp_path: Path) -> None:
    """Parts of a query go in the table's order or by name; what is empty is not sent."""
    seen: list[Request] = []

    class Recorded(ApiServer):
        async def _answer_of(self, route: Route, request: Request) -> object:
            seen.append(request)
            return [] if route.many else types.Generation(7) if route.answer != TEXT else iter(())

    path = str(tmp_path / "agent.sock")
    with served(Agent(), path, server=Recorded):
        client = AgentClient(path)
        for route in ROUTES:
            if getattr(AgentClient, route.name).__qualname__.startswith("_method"):
                answer = getattr(client, route.name)(*(key for key, _ in route.query))
                assert answer == ([] if route.many else "" if route.answer == TEXT else {"generation": 7})
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
