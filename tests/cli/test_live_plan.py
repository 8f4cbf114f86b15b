"""`plan --live`: its forms, limits and exit codes. tests/e2e/test_live_plan.py has real flows."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest
import yaml

from lbagent.cli import live_state
from lbagent.config import Config
from lbagent.errors import NotFound
from lbagent.model.address import L3n4Addr
from lbagent.targets.data_plane import LiveFlows
from tests.api.serving import Agent
from tests.cli.conftest import Run

WEB, LB = L3n4Addr.parse("10.96.0.10:80/TCP"), L3n4Addr.parse("192.0.2.10:80/TCP")
ONE, TWO = L3n4Addr.parse("10.0.0.9:8080/TCP"), L3n4Addr.parse("10.0.0.10:8080/TCP")


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live flows: 9 to one backend of the ClusterIP, 3 to the other one."""

    def live_flows(_config: Config, _names: Collection[str]) -> list[LiveFlows]:
        return [LiveFlows({(WEB, ONE): 9, (WEB, TWO): 3})]

    monkeypatch.setattr(live_state, "live_flows", live_flows)


@pytest.fixture
def folder(tmp_path: Path, agent: Agent) -> Path:
    """Manifests of the ClusterIP with its first backend, and one more frontend."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    agent.folder_source = True
    objects = [
        *service("web", "10.96.0.10", "10.0.0.9"),
        *service("new", "10.96.0.99", *(f"10.0.1.{number}" for number in range(1, 6))),
    ]
    (folder / "web.yaml").write_text(yaml.safe_dump_all(objects))
    return folder


def service(name: str, vip: str, *backends: str) -> list[dict[str, object]]:
    metadata = {"name": name, "namespace": "shop"}
    slices = {"name": f"{name}-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": name}}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": vip,
                "clusterIPs": [vip],
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "metadata": slices,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": [each]} for each in backends],
        },
    ]


def test_text(lb: Run, flows: None, folder: Path) -> None:
    done = lb("plan", "-f", str(folder), "--live")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines == [
        "~ shop/web 10.96.0.10:80/TCP -10.0.0.10:8080/TCP -10.0.0.11:8080/TCP 12 flows: 9 kept, 3 lost (25 %)",
        "- shop/web 192.0.2.10:80/TCP -10.0.0.9:8080/TCP 0 flows",
        "- shop/web 192.0.2.10:80/TCP/i 0 flows",
        "- kube-system/dns [fd00::a]:53/UDP -10.0.0.53:53/UDP 0 flows",
        "+ shop/new 10.96.0.99:80/TCP +10.0.1.1:8080/TCP +10.0.1.2:8080/TCP +10.0.1.3:8080/TCP +2 more 0 flows",
        "5 changes, 0 unchanged: 12 flows: 9 kept, 3 lost (25 %)",
    ]


def test_json(lb: Run, flows: None, folder: Path) -> None:
    found = json.loads(lb("plan", "-f", str(folder), "--live", "-o", "json").out)
    assert list(found) == ["changes", "unchanged", "flows"]
    assert found["changes"][0] == {
        "change": "update",
        "service": "shop/web",
        "frontend": "10.96.0.10:80/TCP",
        "backends_added": [],
        "backends_removed": ["10.0.0.10:8080/TCP", "10.0.0.11:8080/TCP"],
        "flows": {"total": 12, "kept": 9, "lost": 3, "moved": 0},
    }
    assert yaml.safe_load(lb("plan", "-f", str(folder), "--live", "-o", "yaml").out) == found


@pytest.mark.parametrize(("limit", "code"), [("0", 4), ("2", 4), ("3", 0), ("0%", 4), ("24.9%", 4), ("25%", 0)])
def test_max_lost(lb: Run, flows: None, folder: Path, limit: str, code: int) -> None:
    done = lb("plan", "-f", str(folder), "--live", "--max-lost", limit)
    assert done.code == code
    assert done.out.endswith("5 changes, 0 unchanged: 12 flows: 9 kept, 3 lost (25 %)\n")
    assert ("3 of 12 live flows would be lost" in done.err) is bool(code)


@pytest.mark.parametrize(
    "words",
    [
        ["--max-lost", "1%"],
        ["--live", "--max-lost", "x"],
        ["--live", "--max-lost", "-1"],
        ["--live", "--max-lost", "nan"],
        ["--live", "-o", "dump"],
        ["-o", "text"],
    ],
)
def test_wrong_usage(lb: Run, flows: None, folder: Path, words: list[str]) -> None:
    assert lb("plan", "-f", str(folder), *words).code == 2
    assert lb("plan", "-f", str(folder / "none"), "--live").code == 2


def test_something_refused(lb: Run, flows: None, folder: Path) -> None:
    (folder / "bad.yaml").write_text(
        "kind: Service\napiVersion: v1\nmetadata: {name: x}\nspec: {clusterIP: 300.0.0.1}\n"
    )
    done = lb("plan", "-f", str(folder), "--live")
    assert done.code == 1
    assert "bad.yaml" in done.err
    assert "5 changes" in done.out


def test_services_of_another_source_stay(lb: Run, flows: None, folder: Path, agent: Agent) -> None:
    """An agent of a cluster: the folder names some of its Services."""
    agent.folder_source = False
    lines = lb("plan", "-f", str(folder), "--live").out.splitlines()
    assert not any("kube-system/dns" in line for line in lines)
    assert lines[-1].startswith("4 changes, 1 unchanged: ")


def test_without_agent_and_maps(lb: Run, no_agent: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def live_flows(_config: Config, _names: Collection[str]) -> list[LiveFlows]:
        raise NotFound("no maps are pinned")

    monkeypatch.setattr(live_state, "live_flows", live_flows)
    done = lb("plan", "-f", str(tmp_path), "--live")
    assert (done.code, done.out) == (5, "")
    assert "no maps are pinned" in done.err
