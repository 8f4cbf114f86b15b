"""The tests for renderers: record and a model of a system pass them, and a renderer that does wrong does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lbagent.render import (
    Difference,
    Interfaces,
    IPAddresses,
    ResolvedService,
    ResyncEventData,
    ServiceRenderer,
    renderer,
)
from lbagent.testing.renderer import RendererSuite, TortureSuite


class FileRenderer:
    """Keeps what is in force in a file, one line per Service, written whole at a flush."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wanted: dict[str, Any] = {}
        self._ips: list[str] = []

    async def add_service(self, service: ResolvedService) -> None:
        self._wanted[service.id] = service.to_json()

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        assert old.id == new.id
        assert new.id not in {other.id for other in others}
        self._wanted[new.id] = new.to_json()

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        del self._wanted[service.id]

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        self._ips = node_ips.list()
        for service in services:
            self._wanted[service.id] = service.to_json()
        for name, form in self._wanted.items():
            if name not in {service.id for service in services}:
                for port in form["ports"].values():
                    port["node_port"] = 0

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        pass

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        pass

    async def resync(self, snapshot: ResyncEventData) -> None:
        self._wanted = {service.id: service.to_json() for service in snapshot.services}
        self._ips = snapshot.node_ips.list()

    def _lines(self, services: dict[str, Any], ips: list[str]) -> list[str]:
        return [*map(json.dumps, [services[name] for name in sorted(services)]), json.dumps(sorted(ips))]

    async def flush(self) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text("\n".join(self._lines(self._wanted, self._ips)))
        draft.rename(self._path)

    async def dump(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        wanted = self._lines({each.id: each.to_json() for each in snapshot.services}, snapshot.node_ips.list())
        found = await self.dump()
        missing = [Difference("missing", line) for line in wanted if line not in found]
        return missing + [Difference("stale", line) for line in found if line not in wanted]

    def capabilities(self) -> frozenset[str]:
        return frozenset({"weights"})

    async def close(self, keep: bool) -> None:
        if not keep:
            self._path.unlink(missing_ok=True)


class _InAFile:
    renderer_type: type[FileRenderer] = FileRenderer

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "in-force"

    def setup_method(self) -> None:
        pass  # the folder is new

    def teardown_method(self) -> None:
        pass

    def make_renderer(self) -> ServiceRenderer:
        return self.renderer_type(self.path)


class TestModel(_InAFile, RendererSuite):
    pass


class TestModelTortured(_InAFile, TortureSuite):
    pass


class TestRecord(_InAFile, RendererSuite):
    holds_state = False

    def make_renderer(self) -> ServiceRenderer:
        return renderer("record", {"file": str(self.path)})


class TestRecordTortured(_InAFile, TortureSuite):
    def make_renderer(self) -> ServiceRenderer:
        return renderer("record", {"file": str(self.path)})


class TestNone(RendererSuite):
    holds_state = False

    def make_renderer(self) -> ServiceRenderer:
        return renderer("none")


# --- and the suites find what is wrong ---


class Forgetful(FileRenderer):
    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        pass


class Additive(FileRenderer):
    """Its resync adds and never removes."""

    async def resync(self, snapshot: ResyncEventData) -> None:
        self._ips = snapshot.node_ips.list()
        for service in snapshot.services:
            self._wanted[service.id] = service.to_json()


class Torn(FileRenderer):
    """Its flush writes in place, and trusts afterwards what it finds."""

    async def flush(self) -> None:
        if not self._path.exists() or len(self._path.read_text().splitlines()) != len(self._wanted) + 1:
            await super().flush()


class Leaving(FileRenderer):
    async def close(self, keep: bool) -> None:
        pass


class Unordered(FileRenderer):
    def _lines(self, services: dict[str, Any], ips: list[str]) -> list[str]:
        return [*map(json.dumps, services.values()), json.dumps(ips)]


@pytest.mark.parametrize(
    ("renderer_type", "suite", "test"),
    [
        (Forgetful, RendererSuite, "test_each_call_does_what_it_says"),
        (Forgetful, TortureSuite, "test_random_calls"),
        (Additive, TortureSuite, "test_random_calls"),
        (Torn, TortureSuite, "test_random_calls"),
        (Torn, RendererSuite, "test_each_call_does_what_it_says"),
        (Leaving, RendererSuite, "test_close_without_keep_removes_everything"),
        (Unordered, RendererSuite, "test_dump_is_stable"),
    ],
)
def test_a_wrong_renderer_fails(renderer_type: type[FileRenderer], suite: type[Any], test: str, tmp_path: Path) -> None:
    def make_renderer(_self: object) -> ServiceRenderer:
        return renderer_type(tmp_path / "in-force")

    made = type("Wrong", (suite,), {"make_renderer": make_renderer})()
    with pytest.raises(AssertionError):
        getattr(made, test)()
