"""A package whose own code must not run, and what is still found in it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from lbagent import partial_imports


@pytest.fixture
def loud(tmp_path, monkeypatch):
    """A package with a package in it; the code of both breaks the import."""
    inner = tmp_path / "lbagent_test_loud" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("raise ImportError('the code of the package ran')\n")
    (inner / "useful.py").write_text("from lbagent_test_loud import beside\nANSWER = beside.ANSWER\n")
    (inner.parent / "beside.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "lbagent_test_loud"
    for name in [name for name in sys.modules if name.startswith("lbagent_test_loud")]:
        del sys.modules[name]


def test_a_module_is_found_without_the_code_of_its_packages(loud):
    partial_imports.put_in_place(loud, f"{loud}.inner")
    assert importlib.import_module(f"{loud}.inner.useful").ANSWER == 42


def test_what_asks_the_package_for_a_module_gets_it(loud):
    partial_imports.put_in_place(loud)
    assert sys.modules[loud].beside.ANSWER == 42
    with pytest.raises(AttributeError, match="nothing"):
        _ = sys.modules[loud].nothing


def test_a_package_that_is_loaded_stays():
    before = sys.modules["pytest"]
    partial_imports.put_in_place("pytest", "no_such_package")
    assert sys.modules["pytest"] is before
    assert "no_such_package" not in sys.modules


def test_the_client_leaves_the_synchronous_one_out():
    """Its own process, because another test may have loaded it."""
    code = (
        "import sys; from lbagent.kube import kube_client as k; k._load_package(); sys.exit('requests' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_stand_in_is_found_until_its_block_ends(loud):
    with partial_imports.stand_ins({loud: {"ANSWER": 41}, "pytest": {"no_such_name": 1}}):
        assert importlib.import_module(loud).ANSWER == 41
        assert not hasattr(sys.modules["pytest"], "no_such_name"), "a module that is loaded stays as it is"
    with pytest.raises(ImportError, match="the code of the package ran"):
        importlib.import_module(loud)


def test_the_agent_loads_of_two_packages_what_it_needs():
    code = (
        "import sys, lbagent.agent.app, lbagent.agent.announcing, lbagent.targets.bpf.bpf_plane; from lbagent.kube import kube_client; kube_client._load_package();"
        "print(*sorted(set(sys.modules) & {'pydantic', 'pyroute2.ndb', 'pyroute2.iproute.linux', 'kubernetes.aio.client.api_client'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["kubernetes.aio.client.api_client", "pyroute2.iproute.linux"]


def test_a_name_of_the_package_itself_is_found_by_its_own_code():
    code = (
        "import lbagent.iproute, sys; assert 'pyroute2.ndb' not in sys.modules;"
        "from pyroute2 import IPRoute, NDB; assert IPRoute is lbagent.iproute.IPRoute; print(NDB.__name__)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "NDB\n"


def test_a_late_import_is_made_by_the_first_access(loud):
    late = {f"{loud}.beside": partial_imports.imported_late(f"{loud}.beside", "ANSWER"), "pytest": {}}
    partial_imports.put_in_place(loud)
    with partial_imports.stand_ins(late):
        stand_in = importlib.import_module(f"{loud}.beside")
    assert f"{loud}.beside" not in sys.modules
    with pytest.raises(TypeError, match="not callable"):
        stand_in.ANSWER()
    assert stand_in.__name__ == f"{loud}.beside"
    assert sys.modules[f"{loud}.beside"].ANSWER == 42
    with pytest.raises(AttributeError, match="nothing"):
        _ = stand_in.nothing


def test_what_a_socket_for_routes_leaves_out_is_found_when_it_is_used():
    code = (
        "import sys, lbagent.iproute;"
        "assert not {'multiprocessing', 'unittest', 'pyroute2.netlink.rt_files'} & set(sys.modules);"
        "from pyroute2.netlink.rtnl.tcmsg import plugins, tcmsg; from pyroute2 import config, netlink;"
        "assert not [name for name in sys.modules if '.tcmsg.' in name];"
        "print(plugins['netem'].get_parameters.__name__, hex(plugins['clsact'].parent), config.MpQueue(1).empty());"
        "import unittest.mock, multiprocessing, pyroute2.netlink.rtnl.tcmsg.cls_u32 as u32; unittest.mock.Mock();"
        "assert plugins['u32'].options is u32.options"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("get_parameters 0xfffffff1 True\n", "")


def test_an_agent_with_a_folder_imports_nothing_that_it_does_not_use():
    """These were a third of the time of a start."""
    code = (
        "import sys, lbagent.agent.app, lbagent.targets.bpf.bpf_plane, lbagent.sources.folder.source;"
        "print(*sorted(set(sys.modules) & {'netaddr', 'unittest', 'multiprocessing', 'lbagent.kube.kube_client',"
        "'lbagent.sources.kube.source', 'lbagent.apilb.files.pool_files', 'lbagent.apilb.native.native_source',"
        "'lbagent.announce.bgp.speaker', 'lbagent.pools.read_pools', 'lbagent.probes.http_probe',"
        "'lbagent.targets.bpf.explainer', 'lbagent.bpf.run.dry_programs', 'lbagent.targets.bpf.dry_run'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
