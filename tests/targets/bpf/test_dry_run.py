"""`lbagent plan` without its command line."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lbagent.errors import ConfigError
from lbagent.maps.specs import Sizes
from lbagent.sources.folder import resolve_path
from lbagent.targets.bpf import dry_run as dry_runs
from lbagent.targets.bpf.dry_run import dry_run
from lbagent.textfile import read_text

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"


def test_no_such_folder_is_a_wrong_flag(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        dry_run(str(tmp_path / "none"))


@pytest.mark.parametrize("given", [{"node_ips": ("10.0.0",)}, {"maglev_table_size": 16382}])
def test_wrong_flags(tmp_path, given):
    with pytest.raises(ConfigError):
        dry_run(str(tmp_path), **given)


def test_an_empty_folder_is_good(tmp_path):
    result = dry_run(str(tmp_path))
    assert (result.lines, result.messages, result.exit_code) == ([], [], 0)


def test_a_single_file_whatever_its_name(tmp_path):
    (tmp_path / "manifest.txt").write_text(SERVICE)
    assert len(dry_run(str(tmp_path / "manifest.txt")).lines) == 3


def test_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(SERVICE.encode())))
    assert len(dry_run("-").lines) == 3
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff")))
    result = dry_run("-")
    assert result.exit_code == 1
    assert str(result.messages[0]) == "stdin:1: not UTF-8: invalid start byte; kept 0 objects"


def test_the_hosts_name_is_the_node(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "n1")
    (tmp_path / "a.yaml").write_text(
        SERVICE.replace("spec: {", "spec: {internalTrafficPolicy: Local, ")
        + "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"
        + "metadata: {name: w, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{port: 1}]\n"
        + "endpoints: [{addresses: [10.0.0.1], nodeName: n1}]\n"
    )
    assert any(line.startswith("BE: ID=1 ADDR=10.0.0.1:1/TCP") for line in dry_run(str(tmp_path)).lines)


def with_endpoints(node: str = "", hosts: int = 1) -> str:
    addresses = "".join(f"{{addresses: [10.0.0.{n}], nodeName: {node or 'n1'}}}, " for n in range(1, hosts + 1))
    return (
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"
        "metadata: {name: w, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{port: 1}]\n"
        f"endpoints: [{addresses}]\n"
    )


def test_the_node_that_is_named_is_not_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "n1")
    local = SERVICE.replace("spec: {", "spec: {internalTrafficPolicy: Local, ")
    (tmp_path / "a.yaml").write_text(local + with_endpoints("n2"))
    assert any(line.startswith("BE:") for line in dry_run(str(tmp_path), node_name="n2").lines)
    assert not any(line.startswith("BE:") for line in dry_run(str(tmp_path)).lines)


def test_a_warning_is_no_refusal(tmp_path):
    (tmp_path / "a.yaml").write_text(
        SERVICE.replace("spec: {", "spec: {type: NodePort, ").replace("port: 80", "port: 80, nodePort: 30080")
    )
    result = dry_run(str(tmp_path))
    assert [message.warning for message in result.messages] == [True]
    assert result.exit_code == 0


@pytest.mark.parametrize("hosts", [1, 3, 4, 7, 8, 9])
def test_everything_has_room(tmp_path, monkeypatch, hosts):
    """A plan shows what objects mean, not what fits: its maps are as large as they must be."""
    few = replace(Sizes(), services=1, backends=2, source_ranges=1)
    monkeypatch.setattr(dry_runs, "Sizes", lambda: few)
    ranges = "metadata: {name: web}\nspec: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8, 10.0.0.0/16, 192.168.0.0/16], "
    lists = "status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: 192.0.2.2}]}}\n"
    text = SERVICE.replace("metadata: {name: web}\nspec: {", ranges) + lists + with_endpoints(hosts=hosts)
    (tmp_path / "a.yaml").write_text(text)
    result = dry_run(str(tmp_path))
    assert [message for message in result.messages if not message.warning] == []
    assert result.exit_code == 0
    assert sum(line.startswith("BE:") for line in result.lines) == hosts
    assert sum("SLOT=0" in line for line in result.lines) >= 3


@pytest.mark.parametrize(("size", "refused"), [(0, False), (1, True)])
def test_stdin_may_be_as_large_as_a_file(monkeypatch, size, refused):
    monkeypatch.setattr(resolve_path, "MAX_BYTES", len(SERVICE))
    monkeypatch.setattr(read_text, "MAX_BYTES", len(SERVICE))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(SERVICE.encode() + b"\n" * size)))
    result = dry_run("-")
    assert bool(result.exit_code) is refused
    assert bool(result.lines) is not refused


@pytest.mark.slow
def test_a_service_with_every_slot_and_one_more(tmp_path):
    endpoints = "\n".join(
        f"- addresses: [10.{n >> 16}.{n >> 8 & 255}.{n & 255}]" for n in range(1 << 16, (1 << 16) + 40_000)
    )
    more = "\n".join(
        f"- addresses: [10.{n >> 16}.{n >> 8 & 255}.{n & 255}]" for n in range(1 << 17, (1 << 17) + 40_000)
    )
    head = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: NAME, labels: {kubernetes.io/service-name: web}}\n"
    body = "addressType: IPv4\nports: [{port: 1}]\nendpoints:\n"
    text = (
        SERVICE + head.replace("NAME", "a") + body + endpoints + "\n" + head.replace("NAME", "b") + body + more + "\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    result = dry_run(str(tmp_path))
    assert result.exit_code == 1
    assert "COUNT=65535 " in result.lines[1]
    assert any("more than 65535 endpoints" in str(message) for message in result.messages)


@pytest.mark.slow
def test_more_frontends_than_ids(tmp_path):
    ports = "".join(f"{{name: p{n}, port: {n + 1}}}, " for n in range(900))
    services = [
        f"---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{n}}}\nspec: {{externalIPs: [10.1.0.{n}], ports: [{ports}]}}\n"
        for n in range(1, 75)
    ]
    (tmp_path / "a.yaml").write_text("".join(services))
    result = dry_run(str(tmp_path))
    assert result.exit_code == 1
    assert "ids are in use" in str(result.messages[0])
    assert sum(line.startswith("REV:") for line in result.lines) == 65535
