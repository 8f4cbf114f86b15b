"""The control plane of the run, and the tests' objects in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube_api.built_once import BuiltOnce
from tests.kube_api.cloud_machines import NODE_RIGHTS, Machines
from tests.kube_api.cloud_process import ACCOUNT, CloudLab, give_rights
from tests.kube_api.cluster import Cluster
from tests.kube_api.control_plane import ControlPlane
from tests.kube_api.http_proxy import HttpProxy
from tests.kube_api.programs import Programs, build_programs
from tests.kube_api.proxy import Proxy
from tests.lab import netns

_PROGRAMS = BuiltOnce("programs", build_programs)
pytest_collection_finish = _PROGRAMS.begin


@pytest.fixture(scope="session")
def programs() -> Programs:
    return _PROGRAMS.result()


@pytest.fixture(scope="session")
def plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane that tests share: they keep it running, and restore it."""
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
    """The objects of the shared control plane, at first only the node."""
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
def front(own: Cluster) -> Iterator[Proxy]:
    """A proxy before the test's own control plane."""
    proxy = Proxy(own.plane.namespace, 6443)
    yield proxy
    proxy.close()


@pytest.fixture
def own_config(own: Cluster, front: Proxy, tmp_path: Path) -> Path:
    """A kubeconfig through that proxy, valid for each server that has the test's certificates and tokens."""
    return own.plane.kubeconfig(own.plane.lasting_token, tmp_path / "kubeconfig", front.port)


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[Proxy]:
    """A proxy in front of the shared control plane."""
    proxy = Proxy(plane.namespace, 6443)
    yield proxy
    proxy.close()


@pytest.fixture
def config(plane: ControlPlane, proxy: Proxy, tmp_path: Path) -> Path:
    """A kubeconfig of the agent's account, through the proxy."""
    return plane.kubeconfig(plane.agent_token(), tmp_path / "kubeconfig", proxy.port)


@pytest.fixture
def cloud(cluster: Cluster, tmp_path: Path) -> Iterator[CloudLab]:
    """The shared control plane with the rights of the cloud controller, which the test starts."""
    give_rights(cluster.plane)
    front = HttpProxy(cluster.plane)
    kubeconfig = cluster.plane.kubeconfig(cluster.plane.account_token(ACCOUNT), tmp_path / "kubeconfig", front.port)
    lab = CloudLab(cluster, front, kubeconfig, tmp_path)
    yield lab
    lab.close()
    front.close()


@pytest.fixture
def machines(cloud: CloudLab) -> Iterator[Machines]:
    """Nodes and an inventory of machines; the rights for Nodes are given."""
    give_rights(cloud.cluster.plane, NODE_RIGHTS)
    machines = Machines(cloud)
    yield machines
    machines.close()
