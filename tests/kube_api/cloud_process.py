"""`lbagent cloud run` as a process with the real API server: started, killed, and its requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.kube_api.cluster import HOME, Cluster, collection
from tests.kube_api.control_plane import MERGE, ControlPlane, Obj
from tests.kube_api.http_proxy import HttpProxy, Write
from tests.lab.agent import program
from tests.lab.netns import LabError, Namespace, wait_for
from tests.lab.topology import ROOT

ACCOUNT = "lbagent-cloud"
FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/lbagent-cloud"
WITHIN_S = 60.0  # a busy machine needs seconds to start Python


def rights(file: str = "rbac.yaml") -> list[Obj]:
    """Return the objects with the controller's rights."""
    return list(yaml.safe_load_all((ROOT / "deploy" / "cloud" / file).read_text()))


def verbs(objects: list[Obj]) -> set[tuple[str, str]]:
    """Return the rights in objects: verb and resource."""
    rules = [rule for obj in objects for rule in obj.get("rules", ())]
    return {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def give_rights(plane: ControlPlane, file: str = "rbac.yaml") -> None:
    """Create the controller's account, or the objects of another file, once."""
    for obj in rights(file):
        if plane.send("GET", f"{collection(obj)}/{obj['metadata']['name']}")[0] == 404:
            plane.ask("POST", collection(obj), obj)


class CloudProcess:
    """One controller. Short times, as tests wait for them; without an election unless `elects`."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        provider: str,
        config: Any,
        *more: str,
        elects: bool = False,
        name: str = "one",
        namespace: Namespace | None = None,
        python_path: Path | None = None,
    ) -> None:
        self.env = os.environ | ({"PYTHONPATH": str(python_path)} if python_path else {})
        self.folder, self.config, self.log = folder, folder / f"{provider}.yaml", folder / f"cloud-{name}.log"
        self.configure(config)
        self.argv = [
            *program(), "cloud", "run", "--provider", provider, "--config", str(self.config), "--kubeconfig", str(kubeconfig),
            "--node-name", name, "--retry-base", "300ms", "--retry-max", "2s", "--lease-duration", "3s",
            "--leader-elect" if elects else "--no-leader-elect", *more,
        ]  # fmt: skip
        if namespace is not None:
            self.argv = namespace.command(self.argv)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, config: Any) -> None:
        draft = self.config.with_suffix(".new")
        draft.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
        draft.replace(self.config)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, cwd=ROOT, env=self.env)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def until(self, condition: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
        """Wait for a condition; the controller must keep running."""

        def holds() -> Any:
            assert self.process is None or self.process.poll() is None, self.tail()
            return condition()

        try:
            wait_for(holds, what, within_s)
        except LabError as error:
            raise LabError(f"{error}\n{self.tail()}") from None
        return condition()

    def tail(self) -> str:
        return self.log.read_text()[-3000:]


class CloudLab:
    """A cluster, a proxy in front of it that counts writes, and controllers."""

    def __init__(self, cluster: Cluster, front: HttpProxy, kubeconfig: Path, folder: Path) -> None:
        self.cluster, self.front, self.kubeconfig, self.folder = cluster, front, kubeconfig, folder
        self.record = folder / "record.jsonl"
        self.processes: list[CloudProcess] = []

    def run(self, provider: str, config: Any, *more: str, **options: Any) -> CloudProcess:
        one = CloudProcess(self.folder, self.kubeconfig, provider, config, *more, **options)
        self.processes.append(one)
        one.start()
        return one

    def fake(self, *more: str, elects: bool = False, name: str = "one", **config: Any) -> CloudProcess:
        return self.run("fake", {"record": str(self.record), **config}, *more, elects=elects, name=name)

    def calls(self, *ops: str) -> list[Obj]:
        """Return the calls of the provider `fake`."""
        if not self.record.exists():
            return []
        found = [json.loads(line) for line in self.record.read_text().splitlines()]
        return [call for call in found if not ops or call["op"] in ops]

    def writes(self, *resources: str) -> list[Write]:
        return [each for each in list(self.front.writes) if each.resource in resources]

    def add(self, name: str, **spec: Any) -> Obj:
        return self.cluster.add_service(name, **{"type": "LoadBalancer", **spec})

    def service(self, name: str) -> Obj:
        return dict(self.cluster.plane.ask("GET", f"{HOME}/services/{name}"))

    def patch(self, name: str, patch: Obj, part: str = "") -> None:
        self.cluster.plane.ask("PATCH", f"{HOME}/services/{name}{part}", patch, MERGE)

    def ips(self, name: str) -> list[str]:
        return [entry.get("ip", entry.get("hostname")) for entry in self.ingress(name)]

    def ingress(self, name: str) -> Sequence[Obj]:
        return self.service(name)["status"]["loadBalancer"].get("ingress", [])

    def finalizers(self, name: str) -> list[str]:
        return list(self.service(name)["metadata"].get("finalizers", []))

    def is_gone(self, name: str) -> bool:
        return self.cluster.plane.send("GET", f"{HOME}/services/{name}")[0] == 404

    def events(self, name: str) -> dict[str, Obj]:
        """Return the controller's Events about a Service, by reason."""
        found = self.cluster.plane.ask("GET", f"{HOME}/events")["items"]
        mine = [each for each in found if each["source"].get("component") == "service-controller"]
        about = [each for each in mine if each["involvedObject"]["name"] == name]
        reasons = [each["reason"] for each in about]
        assert len(set(reasons)) == len(reasons), reasons
        return {each["reason"]: each for each in about}

    def close(self) -> None:
        for each in self.processes:
            each.close()
        self.cluster.plane.send("DELETE", LEASE)
        for name in self.cluster.names(f"{HOME}/services"):
            if name != "kubernetes" and self.finalizers(name):
                self.patch(name, {"metadata": {"finalizers": None}})
