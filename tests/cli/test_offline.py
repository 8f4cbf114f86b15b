"""Commands that need no agent: plan, config, doctor, map dump, cleanup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lbagent.api.client import AgentClient
from lbagent.cli.verbs import doctor
from lbagent.config import Config
from tests.cli.conftest import Run

MANIFEST = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.1]}, {addresses: [10.244.1.2]}]
"""
DUMP = """\
SVC: ID=0 ADDR=10.96.0.1:0/ANY SLOT=0 LBALG=random AFFTimeout=0 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable
SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=0 LBALG=random AFFTimeout=0 COUNT=2 QCOUNT=0 FLAGS=ClusterIP+non-routable
SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=1 BEID=1 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable
SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=2 BEID=2 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable
BE: ID=1 ADDR=10.244.1.1:8080/TCP STATE=active
BE: ID=2 ADDR=10.244.1.2:8080/TCP STATE=active
REV: ID=1 ADDR=10.96.0.1:80
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "web.yaml").write_text(MANIFEST)
    return tmp_path


def test_plan(lb: Run, no_agent: None, folder: Path) -> None:
    """The lines of the dump contract, without kernel, root and agent."""
    done = lb("plan", "-f", str(folder), "-o", "dump")
    assert (done.code, done.err) == (0, "")
    assert done.out == DUMP
    assert lb("plan", "-f", str(folder)).out == DUMP


def test_plan_as_json(lb: Run, folder: Path) -> None:
    """The rows of `svc list -o json`."""
    (row,) = json.loads(lb("plan", "-f", str(folder), "-o", "json").out)
    assert (row["frontend"], [backend["address"] for backend in row["backends"]]) == (
        "10.96.0.1:80/TCP",
        ["10.244.1.1:8080/TCP", "10.244.1.2:8080/TCP"],
    )


def test_plan_with_something_refused(lb: Run, folder: Path) -> None:
    """Exit code 1, named on stderr, the rest is planned."""
    (folder / "bad.yaml").write_text(MANIFEST.replace("name: web", "name: bad").replace("port: 80,", "port: 70000,"))
    done = lb("plan", "-f", str(folder))
    assert done.code == 1
    assert "bad.yaml" in done.err
    assert "shop/bad" in done.err
    assert "10.96.0.1:80/TCP" in done.out


def test_plan_of_an_empty_folder(lb: Run, tmp_path: Path) -> None:
    assert lb("plan", "-f", str(tmp_path)) == (0, "", "")


def test_config_show_has_every_key(lb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flag over environment; the output is a configuration file itself."""
    monkeypatch.setenv("LBAGENT_NODE_IP", "10.0.0.1, fd00::1")
    monkeypatch.setenv("LBAGENT_NODE_NAME", "from-env")
    shown = yaml.safe_load(lb("config", "show", "--node-name", "from-flag", "--no-external-clusterip").out)
    assert len(shown) == len(Config.__struct_fields__)
    assert shown["node-ip"] == ["10.0.0.1", "fd00::1"]
    assert shown["node-name"] == "from-flag"
    assert shown["external-clusterip"] is False
    assert shown["socket"] == "/run/lbagent/agent.sock"


def test_config_show_can_be_read_back(lb: Run, tmp_path: Path) -> None:
    first = lb("config", "show", "--device", "eth0", "--device", "eth1", "--attach", "tc").out
    file = tmp_path / "lbagent.yaml"
    file.write_text(first)
    assert lb("config", "check", "--config", str(file)) == (0, f"{file}: ok\n", "")
    assert lb("config", "show", "--config", str(file)).out == first
    assert json.loads(lb("config", "show", "-o", "json", "--config", str(file)).out)["device"] == ["eth0", "eth1"]


def test_config_check_names_the_line(lb: Run, tmp_path: Path) -> None:
    file = tmp_path / "lbagent.yaml"
    file.write_text("node-name: a\nsnat-prots: 1-2\n")
    done = lb("config", "check", "--config", str(file))
    assert done.code == 2
    assert f"{file}:2" in done.err
    assert "snat-ports" in done.err


def test_config_check_reads_the_manifests_that_it_names(lb: Run, tmp_path: Path) -> None:
    """A folder that does not exist yet is not an error of the configuration."""
    assert lb("config", "check", "--manifests", str(tmp_path / "none")) == (0, "configuration: ok\n", "")
    web = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.9\n  ports: [{port: %d}]\n"
    (tmp_path / "web.yaml").write_text(web % 80)
    assert lb("config", "check", "--manifests", str(tmp_path)) == (0, f"{tmp_path}: ok\nconfiguration: ok\n", "")
    (tmp_path / "web.yaml").write_text(web % 99999)
    done = lb("config", "check", "--manifests", str(tmp_path))
    assert (done.code, done.out) == (1, "configuration: ok\n")
    assert done.err.startswith(f"{tmp_path}/web.yaml:6: Service default/web: spec.ports[0].port: 99999 ")


def test_doctor(lb: Run) -> None:
    """One finding per line, advice under it; JSON has the same."""
    done = lb("doctor", "--device", "no-such-dev0")
    rows = json.loads(lb("doctor", "--device", "no-such-dev0", "-o", "json").out)
    assert done.code in (1, 3, 77)
    assert {row["level"] for row in rows} <= {"ok", "note", "warning", "error"}
    assert any(row["level"] == "error" and "no-such-dev0" in row["what"] for row in rows)
    assert sum(not line.startswith(" ") for line in done.out.splitlines()) == len(rows)


@pytest.mark.root
def test_doctor_of_a_device_that_is_not_there(lb: Run) -> None:
    """3, as for every unknown device; 1 if there are other errors."""
    assert lb("doctor", "--device", "no-such-dev0").code == 3
    assert lb("doctor", "--device", "no-such-dev0", "--artifact", "/none").code == 1


def test_doctor_reads_settings(lb: Run) -> None:
    assert "30000-32767" in lb("doctor", "--snat-ports", "30000-40000").out


def test_cleanup_of_nothing(lb: Run, tmp_path: Path) -> None:
    done = lb("cleanup", "--bpffs", str(tmp_path / "none"))
    assert (done.code, done.out) == (0, "")
    assert "nothing to clean up" in done.err


def test_doctor_shows_the_conditions_of_the_agent_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault as a warning, the rest as notes; doctor's own findings are not shown twice."""
    fields = ("name", "subject", "text", "remedy", "mended", "severity")
    conditions = [
        dict(zip(fields, row, strict=True))
        for row in (
            ("map-nearly-full", "lb4_service", "nearly full", "raise it", False, "fault"),
            ("objects-refused", "folder", "refused", "", False, "degraded"),
            ("link-detached", "eth0", "attached again", "", True, "fault"),
            ("forwarding-off", "IPv4", "off", "on", False, "fault"),
        )
    ]
    monkeypatch.setattr(AgentClient, "status", lambda _: {"conditions": conditions})
    found = list(doctor.conditions("/none", {("forwarding-off", "IPv4")}))
    assert [(each.level, each.text, each.remedy) for each in found] == [
        ("warning", "nearly full", "raise it"),
        ("note", "refused", ""),
        ("note", "attached again", ""),
    ]


def test_doctor_without_an_agent_shows_no_conditions(tmp_path: Path) -> None:
    assert list(doctor.conditions(str(tmp_path / "none.sock"), ())) == []
