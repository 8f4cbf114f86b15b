"""The file that keeps over a restart which Service had a frontend."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import pytest

from lbagent.agent import frontend_owners
from lbagent.agent.frontend_owners import FrontendOwners
from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.objects.records import Service, ServicePort
from tests.checks.looking import Look
from tests.resolve.watched import Watched

VIP, OTHER = parse_ip("10.96.0.10"), parse_ip("fd00::10")
FRONTEND = L3n4Addr(VIP, 80)


def service(name: str, created: float = 0.0, vip: bytes = VIP) -> Service:
    return Service(
        "d", name, created=created, families=(4, 6), cluster_ips=(vip,), ports=(ServicePort("", L4Type.TCP, 80),)
    )  # type: ignore[arg-type]


def written(watched: Watched, folder: Path) -> FrontendOwners:
    """Return what wrote who has which frontend, as at the end of an agent."""
    owners = FrontendOwners(str(folder))
    owners.read()

    async def end() -> None:
        owners.changed()
        task = asyncio.create_task(owners.run(Some(owned_frontends=watched.resolver.owned_frontends)))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    watched.resolver.resolve()
    asyncio.run(end())
    return owners


def contents(folder: Path) -> Any:
    return json.loads((folder / frontend_owners.FILE).read_text())


def test_it_lists_who_has_what_without_a_timestamp(tmp_path: Path) -> None:
    watched = Watched(service("web"), service("dated", 1.0, parse_ip("10.96.0.11")))
    watched.resolver.resolve()
    watched.put(service("a-copy"), service("six", vip=OTHER))
    written(watched, tmp_path)
    assert contents(tmp_path) == {
        "owners": {
            "d/a-copy": [],
            "d/six": ["[fd00::10]:80/TCP", "[fd00::10]:0/NONE"],
            "d/web": ["10.96.0.10:80/TCP", "10.96.0.10:0/NONE"],
        }
    }
    assert os.stat(tmp_path / frontend_owners.FILE).st_mode & 0o777 == 0o600
    owner_of = FrontendOwners(str(tmp_path)).read()
    assert owner_of(FRONTEND) == "d/web"
    assert owner_of(L3n4Addr(OTHER, 0, L4Type.NONE)) == "d/six"
    assert owner_of(L3n4Addr(VIP, 81)) is None
    again = Watched(service("a-copy"), service("web"))
    again.resolver.set_previous_owner(owner_of)
    assert {str(svc.name) for svc in again.resolver.resolve().state.services} == {"d/web"}


def test_there_is_no_file_where_every_service_has_a_timestamp(tmp_path: Path) -> None:
    written(Watched(service("dated", 1.0)), tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("text", ["", "{", '{"owners": []}', '{"owners": {"d/web": [1]}}'])
def test_a_file_that_cannot_be_read_counts_as_absent_and_is_replaced(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / frontend_owners.FILE).write_text(text)
    owner_of = FrontendOwners(str(tmp_path)).read()
    assert owner_of(FRONTEND) is None
    assert "the owners of frontends are unknown" in caplog.text
    written(Watched(service("web")), tmp_path)
    assert list(contents(tmp_path)["owners"]) == ["d/web"]


def test_a_file_that_cannot_be_written_is_a_condition(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    owners = written(Watched(service("web")), tmp_path / "state")
    check_copies = Look("copies-not-written")
    (found,) = check_copies(Some(owners=owners, sources=[]))
    assert (found.name, found.subject) == ("copies-not-written", str(tmp_path / "state" / frontend_owners.FILE))
    assert found.text == f"{found.subject} cannot be written: Not a directory"
    owners.failure = ""
    assert not list(check_copies(Some(owners=owners, sources=[])))  # type: ignore[arg-type]


def test_an_older_state_never_replaces_a_newer_one(tmp_path: Path) -> None:
    """At the end of an agent a thread may still be about to write."""
    old, new = Watched(service("old")), Watched(service("new"))
    for each in (old, new):
        each.resolver.resolve()
    owners = FrontendOwners(str(tmp_path))
    owners._write(new.resolver.owned_frontends(), 2)
    owners._write(old.resolver.owned_frontends(), 1)
    assert list(contents(tmp_path)["owners"]) == ["d/new"]


def test_while_an_agent_runs_each_change_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend_owners, "MIN_PAUSE_S", 0.0)
    watched, owners = Watched(service("web")), FrontendOwners(str(tmp_path))
    owners.read()

    async def until(*names: str) -> None:
        async with asyncio.timeout(20):
            while not (tmp_path / frontend_owners.FILE).exists() or list(contents(tmp_path)["owners"]) != list(names):  # noqa: ASYNC110 - a thread writes
                await asyncio.sleep(0.005)

    async def follow() -> None:
        task = asyncio.create_task(owners.run(Some(owned_frontends=watched.resolver.owned_frontends)))  # type: ignore[arg-type]
        watched.resolver.resolve()
        owners.changed()
        await until("d/web")
        watched.put(service("more", vip=OTHER))
        watched.resolver.resolve()
        owners.changed()
        await until("d/more", "d/web")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(follow())
