"""The control plane of the run, and what the tests put in it. What has to be built is built before the first test begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.cluster import Cluster
from tests.kube.control_plane import ControlPlane
from tests.kube.programs import BuildFailed, Missing, Programs, build_programs
from tests.kube.proxy import Proxy
from tests.lab import netns

_failed: list[Exception] = []  # why there are no programs


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing now: a test has a time-out, and four minutes without a word look like a hanging one."""
    wanted = any("programs" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    try:
        build_programs(terminal.write_line if terminal else print)
    except (Missing, BuildFailed) as error:
        _failed.append(error)


@pytest.fixture(scope="session")
def programs() -> Programs:
    for error in _failed:
        if isinstance(error, Missing):
            pytest.skip(f"missing: {error}")
        pytest.fail(f"go build: {error}")
    return build_programs(print)


@pytest.fixture(scope="session")
def plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane that tests share: they leave it running, as it was."""
    netns.sweep()
    plane = ControlPlane(programs, tmp_path_factory.mktemp("kube"))
    try:
        plane.start()
        Cluster(plane).prepare()
        plane.start_controllers()
        yield plane
    finally:
        plane.close()


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    """The objects of the shared control plane, none but the node at first."""
    cluster = Cluster(plane)
    yield cluster
    cluster.clear()


@pytest.fixture
def own(programs: Programs, tmp_path: Path) -> Iterator[Cluster]:
    """A control plane for one test, which may break it. Not started."""
    plane = ControlPlane(programs, tmp_path / "kube", "own")
    try:
        yield Cluster(plane)
    finally:
        plane.close()


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[Proxy]:
    """A proxy before the shared control plane."""
    proxy = Proxy(plane.namespace, 6443)
    yield proxy
    proxy.close()


@pytest.fixture
def config(plane: ControlPlane, proxy: Proxy, tmp_path: Path) -> Path:
    """A kubeconfig of the agent's account, through the proxy."""
    return plane.kubeconfig(plane.agent_token(), tmp_path / "kubeconfig", proxy.port)
