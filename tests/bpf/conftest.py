from __future__ import annotations

import pytest

from lbagent.bpf.load.verifier_report import temporary_maps
from tests.bpf.support import mounted_bpffs, tiny
from tests.lab.netns import Namespace


@pytest.fixture
def root(tmp_path):
    """BPFFS/v1 on a bpf file system of its own."""
    folder = tmp_path / "bpffs"
    folder.mkdir()
    with mounted_bpffs(folder):
        (folder / "v1").mkdir()
        yield folder / "v1"


@pytest.fixture(scope="session")
def artifact(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("artifact"))


@pytest.fixture(scope="session")
def second_artifact(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("artifact"), 2)


@pytest.fixture
def fds():
    with temporary_maps() as found:
        yield found


@pytest.fixture
def netns():
    """The test runs inside a namespace with the veth pair v0 - v1, both up."""
    space = Namespace("bpf")
    try:
        space.ip("link add v0 type veth peer name v1", "link set v0 up", "link set v1 up")
        with space.entered():
            yield space
    finally:
        space.delete()
