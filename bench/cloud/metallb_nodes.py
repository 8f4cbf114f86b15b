"""MetalLB 0.13.5 on a LAN: its controller next to the API server, a speaker on each node, and one DNAT rule as the nodes' data plane.

It is built once from the modules in metallb/, and stored below XDG_CACHE_HOME. 0.13 watches EndpointSlices of a removed version, so it
uses Endpoints. Speakers find each other by Pod objects, which are created here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.cloud.answering import PORT
from bench.cloud.stage import NET, OTHER_TOKEN, OTHER_USER, POOL, WORKER, Lan, Obj
from bench.kube.kube_node import resident_mib
from tests.kube_api.control_plane import MERGE
from tests.kube_api.control_plane import PORT as API_PORT
from tests.kube_api.programs import BuildFailed, find_go
from tests.lab.netns import run, wait_for
from tests.lab.topology import LabError, end

HERE = Path(__file__).parent / "metallb"
MODULE = "go.universe.tf/metallb"
BUILDING = "bench.cloud: building MetalLB 0.13.5, once (3 minutes of a core, 0.4 GB of Go modules)"
HOME, KEY, ML_PORT = "metallb-system", "0123456789abcdef", "7946"
API = "/apis/metallb.io/v1beta1/namespaces/metallb-system"
RULES = f"""table ip bench {{
chain in {{ type nat hook prerouting priority dstnat; ip daddr 10.8.4.0/22 tcp dport 80 dnat to {WORKER}:{PORT}; }}
chain out {{ type nat hook postrouting priority srcnat; ip daddr {WORKER} masquerade; }}
}}
"""


def build(say: Callable[[str], object]) -> Path:
    """Return the folder of `speaker` and `controller`, with CRDs; build what is missing. Raises Missing, BuildFailed."""
    sources = b"\0".join((HERE / name).read_bytes() for name in ("go.mod", "go.sum"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "lbagent" / f"metallb-{hashlib.sha256(sources).hexdigest()[:16]}"
    if (folder / "crds").exists():
        return folder
    go = find_go("MetalLB, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "crds").exists():
            say(BUILDING)
            _go(
                go,
                "build",
                "-trimpath",
                "-ldflags=-checklinkname=0",
                "-o",
                f"{folder}/",
                f"{MODULE}/speaker",
                f"{MODULE}/controller",
            )
            place = _go(go, "list", "-m", "-f", "{{.Dir}}", MODULE).strip()
            run("cp", "-r", f"{place}/config/crd/bases", str(folder / "crds"))
    return folder


def _go(go: str, *words: str) -> str:
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"}
    done = subprocess.run(["nice", "-n", "15", go, *words], cwd=HERE, env=env, capture_output=True, text=True)
    if done.returncode:
        raise BuildFailed(done.stderr[-2000:])
    return done.stdout


class MetalLB:
    """The measured system, for gaps.py and many.py."""

    name = "MetalLB"
    joins_s = 12.0  # until the members see one that returns

    def __init__(self, lan: Lan, folder: Path, programs: Path) -> None:
        """Take its machines, the folder of its logs, and the built programs."""
        self.lan, self.folder, self.programs = lan, folder, programs
        self._speakers: dict[str, subprocess.Popen[str]] = {}
        self._controller: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start everything."""
        self._make_objects()
        config = self.lan.plane.kubeconfig(OTHER_TOKEN, self.folder / "metallb.kubeconfig", API_PORT)
        argv = [
            str(self.programs / "controller"), "-kubeconfig", str(config), "-namespace", HOME, "-webhook-mode", "disabled",
            "-disable-cert-rotation", "-ml-secret-name", "memberlist", "-deployment", "controller", "-disable-epslices",
        ]  # fmt: skip
        self._controller = self._run(self.lan.plane.namespace, argv, "controller")
        for name in self.lan.nodes:
            run(*self.lan.spaces[name].command(["nft", "-f", "-"]), text=RULES)
            self.start_node(name)

    def controller_mib(self) -> float:
        """Return the controller's resident memory."""
        assert self._controller is not None
        return resident_mib(self._controller.pid)

    def _run(self, space: Any, argv: list[str], what: str) -> subprocess.Popen[str]:
        with (self.folder / f"metallb-{what}.log").open("a") as log:
            process: subprocess.Popen[str] = space.popen(
                argv, stdout=log, stderr=log, env={**os.environ, "GOMAXPROCS": "2"}
            )
        self.lan.closing.callback(end, process)
        return process

    # --- objects ---

    def _make_objects(self) -> None:
        plane = self.lan.plane
        for path in sorted((self.programs / "crds").iterdir()):
            for obj in yaml.safe_load_all(path.read_text()):
                if obj:
                    obj["spec"].pop("conversion", None)  # a webhook, which does not run
                    plane.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", obj)
        plane.send("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
        pool = {"kind": "IPAddressPool", "metadata": {"name": "lan", "namespace": HOME}, "spec": {"addresses": POOL}}
        wide = {"kind": "L2Advertisement", "metadata": {"name": "lan", "namespace": HOME}, "spec": {}}
        for kind, obj in (("ipaddresspools", pool), ("l2advertisements", wide)):
            body = {"apiVersion": "metallb.io/v1beta1", **obj}
            wait_for(lambda kind=kind, body=body: plane.send("POST", f"{API}/{kind}", body)[0] in (201, 409), kind, 60)
        plane.send("POST", f"/apis/apps/v1/namespaces/{HOME}/deployments", _deployment())
        for name in self.lan.nodes:
            self._make_pod(name)

    def _make_pod(self, node: str) -> None:
        meta = {"name": f"speaker-{node}", "namespace": HOME, "labels": {"app": "metallb", "component": "speaker"}}
        spec = {"nodeName": node, "containers": [{"name": "speaker", "image": "none"}]}
        path, ip = f"/api/v1/namespaces/{HOME}/pods", self._address(node)
        self.lan.plane.send("POST", path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
        self.lan.plane.ask("PATCH", f"{path}/{meta['name']}/status", {"status": status}, MERGE)
        self.lan.closing.callback(self.lan.plane.send, "DELETE", f"{path}/{meta['name']}?gracePeriodSeconds=0")

    def _address(self, node: str) -> str:
        return f"{NET}.{node.rpartition('-')[2]}"

    # --- events of nodes ---

    def kill(self, name: str) -> None:
        """Kill the speaker."""
        self._speakers[name].kill()
        self._speakers[name].wait()

    def stop(self, name: str) -> None:
        """Stop the speaker as the kubelet does."""
        self._speakers[name].send_signal(signal.SIGTERM)
        self._speakers[name].wait(60)

    def start_node(self, name: str) -> None:
        """Start a speaker."""
        config = self.lan.kubeconfig(OTHER_TOKEN, self.folder / f"{name}.kubeconfig")
        ip = self._address(name)
        argv = [
            str(self.programs / "speaker"), "-kubeconfig", str(config), "-namespace", HOME, "-node-name", name, "-ml-bindaddr", ip,
            "-ml-bindport", ML_PORT, "-ml-labels", "app=metallb,component=speaker", "-ml-secret-key", KEY, "-host", ip, "-disable-epslices",
        ]  # fmt: skip
        self._speakers[name] = self._run(self.lan.spaces[name], argv, name)

    def power_off(self, name: str) -> None:
        """Make a machine fail silently."""
        self.lan.pull_cable(name)
        for pid in self.lan.spaces[name].pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._speakers[name].wait()

    def power_on(self, name: str) -> None:
        """Boot it."""
        self.lan.plug_in(name)
        self.start_node(name)

    def check(self) -> None:
        """Raise LabError when one of its processes ended by itself."""
        for what, process in (("controller", self._controller), *self._speakers.items()):
            if process is not None and process.poll() is not None:
                text = (self.folder / f"metallb-{what}.log").read_text()[-2000:]
                raise LabError(f"MetalLB's {what} ended with {process.returncode}\n{text}")

    # --- its writes ---

    def is_controller(self, user: str) -> bool:
        """Return whether an account is the controller's; it is the speakers' too."""
        return user == OTHER_USER

    def is_node(self, _user: str) -> bool:
        """Return whether an account is the speakers' alone: there is none."""
        return False


def _deployment() -> Obj:
    """Return the Deployment that the controller's Secret belongs to."""
    labels = {"app": "metallb"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "controller", "image": "none"}]}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "controller", "namespace": HOME},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
