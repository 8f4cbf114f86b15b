"""The objects of deploy/ with a real API server, which rejects unknown fields and Pods that it would not admit."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.kube_api.cluster import Cluster, collection
from tests.kube_api.control_plane import Obj
from tests.lab.topology import ROOT

pytestmark = [pytest.mark.root]
FILES = [
    *sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml")),
    ROOT / "deploy" / "cleanup" / "daemonset.yaml",
    *(path for path in sorted((ROOT / "deploy" / "cloud").glob("*.yaml")) if path.stem != "kustomization"),
]
STRICT = "dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"
APPLY = "application/apply-patch+yaml"


def objects(path: Path) -> list[Obj]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_server_takes_each_object(cluster: Cluster, path: Path) -> None:
    for obj in objects(path):
        status, answer = cluster.plane.send(
            "PATCH", f"{collection(obj)}/{obj['metadata']['name']}?{STRICT}", obj, APPLY
        )
        assert status in (200, 201), answer


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name == "daemonset.yaml"], ids=lambda path: path.parent.name
)
def test_the_server_takes_the_pods_too(cluster: Cluster, path: Path) -> None:
    (daemons,) = objects(path)
    template = daemons["spec"]["template"]
    meta = template["metadata"] | {"name": "one", "namespace": "kube-system"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
    status, answer = cluster.plane.send("POST", f"{collection(pod)}?{STRICT.replace('&force=true', '')}", pod)
    assert status == 201, answer
    assert answer["spec"]["priority"] > 2_000_000_000
