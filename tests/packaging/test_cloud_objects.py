"""The objects of deploy/cloud: they are consistent, with a valid command line and a valid pools file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import lbagent
from lbagent.cli.verbs.cloud import run
from lbagent.config import options
from lbagent.pools.read_pools import parse_pools

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "cloud"
OBJECTS = {
    obj["kind"]: obj
    for path in DEPLOY.glob("*.yaml")
    for obj in yaml.safe_load_all(path.read_text())
    if "metadata" in obj
}


@pytest.fixture
def pod() -> Any:
    return OBJECTS["Deployment"]["spec"]["template"]["spec"]


def test_the_kustomization_has_every_file() -> None:
    found = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert sorted(found["resources"]) == sorted(
        path.name for path in DEPLOY.glob("*.yaml") if path.stem != "kustomization"
    )
    assert found["images"][0]["newTag"] == lbagent.__version__


def test_the_command_line_is_taken(pod: Any) -> None:
    (container,) = pod["containers"]
    verb, sub, *arguments = container["args"]
    assert (verb, sub) == ("cloud", "run")
    found = run.make_context("run", list(arguments)).params
    assert isinstance(run, click.Command)
    assert (found["in_cluster"], found["leader_elect"], found["provider"]) == (True, True, "pool")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert found["health_address"] == f"0.0.0.0:{ports['healthz']}"
    assert found["metrics_address"] == f"0.0.0.0:{ports['metrics']}"
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    (file,) = OBJECTS["ConfigMap"]["data"]
    assert found["config"] == f"{mount['mountPath']}/{file}"
    assert (mount["name"], volume["configMap"]["name"]) == (volume["name"], OBJECTS["ConfigMap"]["metadata"]["name"])


def test_the_pools_are_good_and_give_nothing_yet() -> None:
    (text,) = OBJECTS["ConfigMap"]["data"].values()
    assert parse_pools(text, "pools.yaml").pools == ()
    example = next(line.partition("# ")[2] for line in text.splitlines() if line.startswith("# - "))
    assert parse_pools(f"pools:\n{example}\n", "pools.yaml").pools[0].name == "office"


def test_it_needs_no_rights_on_the_node(pod: Any) -> None:
    assert OBJECTS["Deployment"]["spec"]["replicas"] == 2
    assert pod["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_patch_of_the_agents_adds_what_announcing_needs() -> None:
    patch = yaml.safe_load((DEPLOY / "agents" / "announce.yaml").read_text())["spec"]["template"]["spec"]
    daemon_set = yaml.safe_load((DEPLOY.parent / "kubernetes" / "daemonset.yaml").read_text())
    (patched,), (container,) = patch["containers"], daemon_set["spec"]["template"]["spec"]["containers"]
    assert patched["name"] == container["name"]
    assert patched["args"][:-1] == container["args"]
    capabilities = container["securityContext"]["capabilities"]["add"]
    assert patched["securityContext"]["capabilities"]["add"] == [*capabilities, "NET_BIND_SERVICE"]
    assert "NET_RAW" in capabilities
    (mount,), (volume,) = patched["volumeMounts"], patch["volumes"]
    (file,) = OBJECTS["ConfigMap"]["data"]
    assert patched["args"][-1] == f"--announce={mount['mountPath']}/{file}"
    assert (mount["name"], volume["configMap"]["name"]) == (volume["name"], OBJECTS["ConfigMap"]["metadata"]["name"])
    flags = {option.flag for option in options()}
    assert {word.partition("=")[0] for word in patched["args"][1:]} <= flags | {"--config"}
