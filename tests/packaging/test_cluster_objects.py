"""The installation in a cluster: the kustomization and the chart have the same objects, with only the needed rights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import lbagent
from lbagent import config
from lbagent.config.schema import HEALTHZ
from lbagent.healthz import proxy_health
from tests.conformance.daemonset_agents import DaemonSetAgents, overlay
from tests.packaging.renderer import Obj, render

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
AGENT = ("DaemonSet", "lbagent")
SETTINGS = ("ConfigMap", "lbagent")


def objects() -> dict[tuple[str, str], Obj]:
    found = [obj for path in MANIFESTS for obj in yaml.safe_load_all(path.read_text())]
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in found}


def pod() -> Any:
    return objects()[AGENT]["spec"]["template"]["spec"]


def comparable(found: dict[tuple[str, str], Obj]) -> dict[tuple[str, str], Obj]:
    """Parsed settings, without the checksum by which a chart updates the Pods."""
    settings = found[SETTINGS]["data"]
    settings["lbagent.yaml"] = yaml.safe_load(settings["lbagent.yaml"])
    annotations = found[AGENT]["spec"]["template"]["metadata"].pop("annotations", {})
    assert annotations.keys() <= {"checksum/config"}
    return found


def test_the_chart_and_the_kustomization_give_the_same_objects(renderer: Path) -> None:
    kustomized = comparable(render(renderer, "kustomize", DEPLOY))
    assert comparable(render(renderer, "helm", DEPLOY / "helm")) == kustomized
    assert kustomized.keys() == objects().keys()


def test_the_e2e_suite_installs_these_objects_with_the_address_of_the_api_server(
    renderer: Path, tmp_path: Path
) -> None:
    folder = overlay(DEPLOY, tmp_path / "overlay", "https://192.0.2.10:6443", ["--log-format=json"])
    found, packaged = render(renderer, "kustomize", folder), render(renderer, "kustomize", DEPLOY)
    address = found.pop(("ConfigMap", "lbagent-api-server"))
    container, unchanged = (each[AGENT]["spec"]["template"]["spec"]["containers"][0] for each in (found, packaged))
    keys = {
        name: each["valueFrom"]["configMapKeyRef"] for each in container["env"] if (name := each["name"]) != "NODE_NAME"
    }
    read = {
        name: address["data"][ref["key"]] for name, ref in keys.items() if ref["name"] == address["metadata"]["name"]
    }
    assert read == {"KUBERNETES_SERVICE_HOST": "192.0.2.10", "KUBERNETES_SERVICE_PORT": "6443"}
    assert container["image"] == DaemonSetAgents.image
    unchanged["args"].append("--log-format=json")
    assert found == packaged


def test_what_can_be_set_of_the_chart_is_in_its_objects(renderer: Path, tmp_path: Path) -> None:
    values = {
        "image": {"repository": "registry.example/lb", "tag": "7", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "key"}],
        "apiServer": {"host": "192.0.2.10"},
        "config": {"device": ["bond0"], "log-format": "json"},
        "socketLB": False,
        "args": ["--log-level=debug"],
        "resources": {"limits": {"memory": "1Gi"}},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "nodeSelector": {"a": "b"},
        "maxUnavailable": "10%",
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    plain = render(renderer, "helm", DEPLOY / "helm")
    found = render(renderer, "helm", DEPLOY / "helm", tmp_path / "values.yaml")
    spec = found[AGENT]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example/lb:7", "Always")
    assert spec["template"]["spec"]["imagePullSecrets"] == [{"name": "key"}]
    assert found["ConfigMap", "lbagent-api-server"]["data"] == {"host": "192.0.2.10", "port": "6443"}
    settings = yaml.safe_load(found[SETTINGS]["data"]["lbagent.yaml"])
    assert (settings["device"], settings["log-format"], settings["socket-lb"]) == (["bond0"], "json", False)
    assert settings["in-cluster"] is True
    assert container["args"][-1] == "--log-level=debug"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert spec["template"]["spec"]["tolerations"] == [{"key": "a", "operator": "Exists"}]
    assert spec["template"]["spec"]["nodeSelector"] == {"a": "b"}
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    sums = [each[AGENT]["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for each in (plain, found)]
    assert sums[0] != sums[1]


def test_the_cleanup_has_the_agents_rights_to_the_kernel_and_none_in_the_cluster(renderer: Path) -> None:
    ((_, cleanup),) = render(renderer, "kustomize", DEPLOY / "cleanup").items()
    spec = cleanup["spec"]["template"]["spec"]
    (first,) = spec["initContainers"]
    assert first["args"] == ["cleanup"]
    assert first["securityContext"] == pod()["containers"][0]["securityContext"]
    assert (
        first["image"]
        == render(renderer, "kustomize", DEPLOY)[AGENT]["spec"]["template"]["spec"]["containers"][0]["image"]
    )
    assert spec["automountServiceAccountToken"] is False
    assert "capabilities" not in str(spec["containers"]).replace("'capabilities': {'drop': ['ALL']}", "")
    bpffs = next(volume for volume in pod()["volumes"] if volume["name"] == "bpffs")
    assert spec["volumes"] == [bpffs]


def test_versions_are_this_one() -> None:
    chart = yaml.safe_load((DEPLOY / "helm" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == lbagent.__version__
    for folder in (DEPLOY, DEPLOY / "cleanup"):
        (image,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["images"]
        assert image["newTag"] == lbagent.__version__
    for name in ("backendstates.yaml", "localredirectpolicies.yaml"):
        copied = (DEPLOY / "helm" / "crds" / name).read_text()
        assert copied == (DEPLOY / "kubernetes" / name).read_text()


def test_the_configuration_is_good(tmp_path: Path) -> None:
    path = tmp_path / "lbagent.yaml"
    path.write_text(objects()[SETTINGS]["data"]["lbagent.yaml"])
    command = [sys.executable, "-m", "lbagent", "config", "check", "--config", path]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LBAGENT_NODE_NAME": "n"})
    assert done.returncode == 0, done.stderr
    loaded = config.load({}, {}, str(path))
    assert loaded.in_cluster
    assert loaded.socket_lb
    assert loaded.node_liveness == "udp"


def test_the_key_of_the_echo_is_a_secret_that_is_mounted_where_the_settings_say() -> None:
    secret = objects()["Secret", "lbagent-liveness"]
    assert "data" not in secret, "no key that everyone knows"
    assert "stringData" not in secret
    (volume,) = [each for each in pod()["volumes"] if each.get("secret")]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    (container,) = pod()["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    settings = yaml.safe_load(objects()[SETTINGS]["data"]["lbagent.yaml"])
    assert settings["liveness-key-file"] == f"{mount['mountPath']}/key"


def test_folders_that_the_agent_uses_are_the_nodes() -> None:
    """The pins, the socket and the state outlive the Pod, at the paths of the node's own lbagent."""
    (container,) = pod()["containers"]
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    paths = {
        each["mountPath"]: volumes[each["name"]].get("hostPath", {}).get("path") for each in container["volumeMounts"]
    }
    defaults = config.Config()
    for used in (Path(defaults.bpffs).parent, Path(defaults.socket).parent, Path(defaults.state_dir)):
        assert paths[str(used)] == str(used)
    assert "/sys/fs/cgroup" in paths.values()


def test_probes_ask_what_is_answered() -> None:
    (container,) = pod()["containers"]
    asked = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["path"].strip("/") for probe in asked.values()} == {"livez", proxy_health.READY_PATH}
    assert asked["readinessProbe"]["path"] == f"/{proxy_health.READY_PATH}"
    assert {probe["port"] for probe in asked.values()} == {int(HEALTHZ[0].rpartition(":")[2])}


def test_the_pod_is_not_privileged_and_runs_everywhere() -> None:
    spec = pod()
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert not security["privileged"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN", "NET_RAW"]}
    assert security["readOnlyRootFilesystem"]
    assert spec["hostNetwork"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["dnsPolicy"] == "Default"
    flags = {name.flag for option in config.options() for name in option.names} | {"--config"}
    assert {word.partition("=")[0] for word in container["args"][1:]} <= flags


@pytest.mark.parametrize("name", ["host", "port"])
def test_the_api_servers_address_is_a_map_that_need_not_be_there(name: str) -> None:
    env = {each["name"]: each for each in pod()["containers"][0]["env"]}
    source = env[f"KUBERNETES_SERVICE_{name.upper()}"]["valueFrom"]["configMapKeyRef"]
    assert source == {"name": "lbagent-api-server", "key": name, "optional": True}
