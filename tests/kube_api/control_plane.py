"""A Kubernetes control plane in its own namespace: API server with etcd, and the controllers that create EndpointSlices.

A Pod is only its status: the tests write it, and the real controller creates slices from it. The agent's requests are in the audit
log, so they are counted, and read, where they arrive.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.kube_api.programs import Programs
from tests.lab.netns import Namespace, run, wait_for

Obj = dict[str, Any]
PORT, ETCD = 6443, "http://127.0.0.1:2379"
ADVERTISED = "192.0.2.10"  # the endpoint of Service default/kubernetes; an API server accepts no loopback address
RANGES = "10.96.0.0/12,fd00:10:96::/112"
CONTROLLERS = ("endpointslice-controller", "namespace-controller", "garbage-collector-controller")
ACCOUNT_NAMESPACE, ACCOUNT = "kube-system", "lbagent"
AGENT = f"system:serviceaccount:{ACCOUNT_NAMESPACE}:{ACCOUNT}"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [{"level": "Metadata", "users": [AGENT]}, {"level": "None"}],
}
READY_S = 60
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class Refused(RuntimeError):
    """The API server rejected a request."""


class ServerConnection(http.client.HTTPSConnection):
    """A connection to the API server, from within its namespace."""

    def __init__(self, plane: ControlPlane, timeout_s: float | None = None) -> None:
        context = ssl.create_default_context(cafile=plane.certificate)
        super().__init__("127.0.0.1", PORT, timeout=timeout_s, context=context)
        self._namespace = plane.namespace

    def connect(self) -> None:
        self._namespace.call(super().connect)


class ControlPlane:
    """An API server that can be killed, restarted with the same data, and accessed."""

    def __init__(self, programs: Programs, folder: Path, role: str = "kube") -> None:
        self.programs, self.folder = programs, folder
        self.namespace = Namespace(role)
        self.audit = folder / "audit.log"
        self._admin = secrets.token_hex(16)
        self.lasting_token = secrets.token_hex(16)  # the agent's account by name, also in another cluster
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._connection: ServerConnection | None = None
        self._asking = threading.Lock()
        self._flags: tuple[str, ...] = ()
        self._prepare()

    def _prepare(self) -> None:
        self.folder.mkdir(exist_ok=True)
        run("openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048")
        tokens = f'{self._admin},admin,admin,"system:masters"\n{self.lasting_token},{AGENT},agent\n'
        (self.folder / "tokens.csv").write_text(tokens)
        (self.folder / "audit.yaml").write_text(json.dumps(AUDIT))

    # --- processes ---

    def start(self, *flags: str) -> None:
        """Start the API server, with further flags, with the existing data; return when it is ready."""
        self._flags = flags
        self._start_etcd()
        key = self.folder / "sa.key"
        argv = [
            str(self.programs.apiserver), "--etcd-servers", ETCD, "--cert-dir", str(self.folder / "certs"),
            "--bind-address=127.0.0.1", f"--secure-port={PORT}", f"--advertise-address={ADVERTISED}",
            f"--service-cluster-ip-range={RANGES}", f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount", f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.audit}", *flags,
        ]  # fmt: skip
        env = {} if self.programs.etcd else {"LBAGENT_ETCD_DIR": str(self._data), "LBAGENT_ETCD_URL": ETCD}
        self._run("kube-apiserver", argv, env)
        wait_for(self._is_ready, "the API server", READY_S)

    def start_controllers(self, *more: str) -> None:
        """Start the controllers, which create EndpointSlices and remove orphans; `more` of them by name."""
        config = self.kubeconfig(self._admin, self.folder / "controllers.kubeconfig", PORT)
        argv = [
            str(self.programs.controller_manager), f"--kubeconfig={config}", f"--controllers={','.join((*CONTROLLERS, *more))}",
            "--leader-elect=false", f"--cert-dir={self.folder / 'certs'}", "--kube-api-qps=500", "--kube-api-burst=1000",
        ]  # fmt: skip
        self._run("kube-controller-manager", argv)

    def kill(self) -> None:
        """Kill the API server, and its built-in etcd if it has one; the data stays."""
        self._end("kube-apiserver")

    def restart(self, *flags: str) -> None:
        """Kill it and restart it with the same data."""
        self.kill()
        self.start(*(flags or self._flags))

    def forget(self) -> None:
        """Delete the data: the next start is another, empty cluster with the same certificates and accounts' key."""
        self._end("etcd")
        shutil.rmtree(self._data, ignore_errors=True)

    def close(self) -> None:
        """End everything."""
        for name in list(self._processes):
            self._end(name)
        self.namespace.delete()

    @property
    def _data(self) -> Path:
        return self.folder / "etcd"

    def _start_etcd(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)
        if self.programs.etcd and "etcd" not in self._processes:
            argv = [str(self.programs.etcd), f"--data-dir={self._data}", f"--listen-client-urls={ETCD}"]
            self._run("etcd", [*argv, f"--advertise-client-urls={ETCD}", "--unsafe-no-fsync"])

    def _run(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self._processes[name] = self.namespace.popen(
                argv, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **(env or {})}
            )

    def _end(self, name: str) -> None:
        if process := self._processes.pop(name, None):
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        process = self._processes["kube-apiserver"]
        if process.poll() is not None:
            raise Refused(f"kube-apiserver ended with {process.returncode}\n{self.tail()}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.send("GET", "/readyz")[0] == 200
        return False

    def tail(self, name: str = "kube-apiserver", lines: int = 20) -> str:
        """Return the end of a log."""
        return "\n".join((self.folder / f"{name}.log").read_text().splitlines()[-lines:])

    # --- requests ---

    def send(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        """Send a request as the administrator, from any thread; return the status and the answer's JSON (else its text)."""
        headers = {"Authorization": f"Bearer {self._admin}", "Content-Type": kind}
        text = None if body is None else json.dumps(body)
        with self._asking:
            status, data = self._exchange(method, path, text, headers)
        with contextlib.suppress(ValueError):
            return status, json.loads(data)
        return status, data.decode()

    def _exchange(self, method: str, path: str, text: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        for is_last in (False, True):
            if self._connection is None:
                self._connection = ServerConnection(self, 30)
            try:
                self._connection.request(method, path, text, headers)
                answer = self._connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                self._connection = None
                if is_last:
                    raise
        raise AssertionError("unreachable")

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request as the administrator. Raises Refused."""
        status, answer = self.send(method, path, body, kind)
        if status >= 300:
            raise Refused(f"{method} {path}: {status} {answer}")
        return answer

    def compact(self) -> None:
        """Compact etcd's history: a watch that begins before now is too old."""
        here = int(self.ask("GET", "/api/v1/namespaces?limit=1")["metadata"]["resourceVersion"])
        self.namespace.call(_post, f"{ETCD}/v3/kv/compaction", {"revision": str(here), "physical": True})

    # --- credentials ---

    @property
    def certificate(self) -> str:
        """The file of the server's certificate."""
        return str(self.folder / "certs" / "apiserver.crt")

    def agent_token(self) -> str:
        """Return a new token of the agent's service account, which must exist."""
        return self.account_token(ACCOUNT)

    def account_token(self, account: str) -> str:
        """Return a new token of a service account of kube-system, which must exist."""
        path = f"/api/v1/namespaces/{ACCOUNT_NAMESPACE}/serviceaccounts/{account}/token"
        answer = self.ask("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        return str(answer["status"]["token"])

    def kubeconfig(self, token: str, path: Path, port: int) -> Path:
        """Write a kubeconfig for the server at this port of 127.0.0.1."""
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": self.certificate}
        text = {
            "current-context": "kube",
            "contexts": [{"name": "kube", "context": {"cluster": "kube", "user": "agent"}}],
            "clusters": [{"name": "kube", "cluster": cluster}],
            "users": [{"name": "agent", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(text))
        return path

    # --- the agent's requests ---

    def requests(self) -> list[AgentRequest]:
        """Return every request of the agent's account that arrived, in order."""
        if not self.audit.exists():
            return []
        return list(_requests(self.audit.read_text().splitlines()))


class AgentRequest:
    """A request from the audit log."""

    def __init__(self, entry: Obj) -> None:
        ref = entry.get("objectRef") or {}
        self.verb, self.resource = entry["verb"], ref.get("resource", "")
        self.query = {key: values[0] for key, values in parse_qs(urlsplit(entry["requestURI"]).query).items()}

    def __repr__(self) -> str:
        return f"{self.verb} {self.resource} {self.query}"


def _requests(lines: list[str]) -> Iterator[AgentRequest]:
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be half written
            entry = json.loads(line)
            if entry["stage"] == "RequestReceived":
                yield AgentRequest(entry)


def _post(url: str, body: Obj) -> None:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, json.dumps(body).encode()) as answer:
        answer.read()
