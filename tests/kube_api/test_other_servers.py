"""Two real API servers with different histories behind one address, and a resource whose definition is added and removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kube_api.cluster import CRDS, Cluster
from tests.kube_api.control_plane import ControlPlane
from tests.kube_api.following import TIMING, Following, following, settings
from tests.kube_api.programs import Programs
from tests.kube_api.proxy import Proxy

pytestmark = [pytest.mark.root]
SERVICES = 24
DEFINITION = f"{CRDS}/backendstates.lbagent.io"


@pytest.fixture
def first(own: Cluster) -> Cluster:
    own.plane.start()
    own.prepare()
    return own


@pytest.fixture
def second(first: Cluster, programs: Programs, tmp_path: Path) -> Iterator[Cluster]:
    """An empty cluster with the same certificates and token: only its etcd differs."""
    plane = ControlPlane(programs, tmp_path / "second", "second")
    try:
        for name in ("certs", "sa.key", "tokens.csv"):
            there, here = plane.folder / name, first.plane.folder / name
            shutil.copytree(here, there) if here.is_dir() else shutil.copy(here, there)
        plane._admin = first.plane._admin
        plane.start()
        cluster = Cluster(plane)
        cluster.prepare()
        yield cluster
    finally:
        plane.close()


def lead(front: Proxy, to: Cluster) -> None:
    """Direct the address to another server, and break open connections."""
    front._server = to.plane.namespace
    front.cut()


def has(one: Following, name: str) -> bool:
    return f"default/{name}" in one.source.snapshot().services


async def test_nothing_of_another_server_is_left(
    first: Cluster, second: Cluster, front: Proxy, own_config: Path
) -> None:
    first.add_services(SERVICES)
    async with following(settings(own_config)) as one:
        await one.until(lambda: has(one, f"web-{SERVICES - 1}"), "the Services of the first server")
        lead(front, second)
        second.add_service("of-second", selector=False)
        second.put_slice("of-second-x", "of-second", "10.244.8.8")
        await one.until(lambda: has(one, "of-second"), "the Service of the second server")
        lead(front, first)
        await one.until(lambda: not has(one, "of-second") and one.source.trusted, "the first server's Services alone")
        await one.converges(own_config)
        assert all(has(one, f"web-{number}") for number in range(SERVICES))


async def test_a_definition_that_comes_goes_and_comes_again(first: Cluster, front: Proxy, own_config: Path) -> None:
    def states() -> set[str]:
        return set(one.source.snapshot().backend_states)

    async with following(settings(own_config, timing=replace(TIMING, absent_s=1.0))) as one:
        for name in ("one", "two"):
            first.install_backend_states()
            first.add_backend_state(name, address="10.244.0.10:8080", state="maintenance")
            await one.until(lambda name=name: states() == {name}, f"the BackendState {name}")
            first.plane.ask("DELETE", DEFINITION)
            await one.until(lambda: not states(), "the end of its objects")
            await one.until(lambda: one.source.trusted and not one.texts, "trust")
            await one.until(lambda: first.plane.send("GET", DEFINITION)[0] == 404, "the end of the definition")
        await one.converges(own_config)
