"""`lbagent render`: the same manifests give the same bytes; what it refuses; nft accepts the text."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lbagent.cli.verbs.render import render

DEMO = str(Path(__file__).resolve().parents[2] / "examples" / "demo")
ARGUMENTS = ("-f", DEMO, "--node", "demo-node", "--node-ip", "192.0.2.1")


def rendered(*words: str) -> Result:
    return CliRunner().invoke(render, list(words), standalone_mode=False)


def test_the_text_is_stable_and_names_each_service() -> None:
    first, second = rendered(*ARGUMENTS), rendered(*ARGUMENTS)
    assert (first.exception, first.return_value) == (None, 0)
    assert first.stdout == second.stdout
    assert first.stdout.startswith("table inet lbagent\ndelete table inet lbagent\n")
    for comment in ('"demo/web http"', '"demo/dns dns"'):
        assert comment in first.stdout


def test_the_settings_of_the_renderer_are_in_the_text() -> None:
    found = rendered(*ARGUMENTS, "--renderer", "nftables=table=other,priority=-7,family=ipv6")
    assert "table inet other" in found.stdout
    assert "priority dstnat - 7" in found.stdout
    assert "10.96.0.10" not in found.stdout


def test_the_json_is_that_of_libnftables() -> None:
    found = json.loads(rendered(*ARGUMENTS, "-o", "json").stdout)
    assert {"table", "map", "chain", "rule"} <= {key for item in found["nftables"] for key in item}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-o", "dump"), "-o dump: nftables has the forms nft, json"),
        (("--renderer", "bpf"), "name one of those that have a text: nftables"),
        (("--renderer", "iptables"), "unknown renderer 'iptables'; there are bpf, nftables, record, none"),
        (("--renderer", "nftables=colour=red"), "unknown setting 'colour'"),
        (("-f", "/nowhere"), "/nowhere: No such file or directory"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], text: str) -> None:
    found = rendered(*ARGUMENTS, *words)
    assert text in str(found.exception)
    assert getattr(found.exception, "exit_code", 0) == 2


def test_what_is_wrong_with_an_object_is_named_and_the_rest_is_printed(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "demo")
    (tmp_path / "demo" / "bad.yaml").write_text(
        "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: 3}\n"
    )
    found = rendered("-f", str(tmp_path / "demo"), "--node", "demo-node")
    assert found.return_value == 1
    assert "bad.yaml" in found.stderr
    assert "demo/web http" in found.stdout


def test_what_nftables_cannot_do_is_a_warning(tmp_path: Path) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "proxied", "namespace": "box", "annotations": {"lbagent.io/l7-proxy-port": "9000"}},
        "spec": {"clusterIP": "10.96.0.99", "ports": [{"name": "http", "port": 80}]},
    }
    (tmp_path / "proxied.json").write_text(json.dumps(manifest))
    found = rendered("-f", str(tmp_path), "--node", "demo-node")
    assert "warning: box/proxied: the L7 proxy gets no connections from nftables" in found.stderr


@pytest.mark.root
@pytest.mark.skipif(not shutil.which("nft"), reason="needs nft")
def test_nft_accepts_the_text() -> None:
    text = rendered(*ARGUMENTS).stdout
    script = "nft -c -f - && true"
    done = subprocess.run(["unshare", "--net", "sh", "-c", script], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
