"""After any events between the server's objects and the agent, the final State is that of a fresh list."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lbagent.kube.kube_client import ApiError, ServerUnreachable
from lbagent.kube.kube_settings import KubeSettings, KubeTiming
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.objects.store import Store
from lbagent.resolve import Options, Resolver, resolve
from lbagent.sources.kube import source as kube_source
from tests.kube.api_server import Obj
from tests.kube.cluster import HEADLESS, NODE, PROXY_NAME, kubeconfig, node
from tests.kube.scripted_server import ScriptedServer

AT_ONCE = KubeTiming(first_pause_s=0, max_pause_s=0, healthy_s=0, standing_s=0, alive_s=0, absent_s=0, page=1)
MOST_TURNS = 20_000
NAMES = ("a", "b", "c")
PODS = ("10.244.0.1", "10.244.0.2", "10.244.0.3")
DATES = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")


class Variant:
    """One of the forms of an object in a small set of names and addresses, so that objects often coincide."""

    def __init__(self, number: int) -> None:
        self._pick = random.Random(number).choice

    def make(self, kind: str, name: str) -> Obj:
        spec: dict[str, Any] = getattr(self, f"_{kind.lower()}")(name)
        labels = spec.pop("labels", {})
        meta = {"name": name, "labels": labels, "creationTimestamp": self._pick(DATES)}
        if kind != "BackendState":
            meta["namespace"] = "default"
        return {"kind": kind, "metadata": meta, **spec}

    def _service(self, name: str) -> Obj:
        pick = self._pick
        port = {"name": "http", "port": 80, "protocol": pick(("TCP", "TCP", "UDP")), "nodePort": pick((30080, 30081))}
        policies = {f"{which}TrafficPolicy": pick(("Cluster", "Local")) for which in ("internal", "external")}
        spec = {
            "type": pick(("ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "ExternalName")),
            "clusterIPs": pick((["10.96.0.1"], ["10.96.0.2"], ["10.96.0.3"], ["None"])),
            "externalIPs": pick(([], ["203.0.113.1"], ["203.0.113.1", "203.0.113.2"])),
            "sessionAffinity": pick(("None", "ClientIP")),
            "ports": [port],
            **policies,
        }
        ingress = pick(([], [{"ip": "198.51.100.1"}], [{"ip": "198.51.100.2"}]))
        labels = pick(({}, {}, {}, {PROXY_NAME: "another"}))
        return {"spec": spec, "status": {"loadBalancer": {"ingress": ingress}}, "labels": labels}

    def _endpointslice(self, name: str) -> Obj:
        labels = {"kubernetes.io/service-name": self._pick((*NAMES, name, name))}
        ports = [{"name": "http", "port": self._pick((8080, 8081)), "protocol": "TCP"}]
        endpoints = [self._endpoint() for _ in range(self._pick((1, 2, 3)))]
        labels |= self._pick(({}, {}, {}, {HEADLESS: ""}))
        return {"addressType": "IPv4", "ports": ports, "endpoints": endpoints, "labels": labels}

    def _endpoint(self) -> Obj:
        pick = self._pick
        conditions = {name: pick((True, False, None)) for name in ("ready", "serving", "terminating")}
        return {
            "addresses": [pick(PODS)],
            "conditions": conditions,
            "nodeName": pick((NODE, "node-2")),
            "hints": pick((None, {"forZones": [{"name": "a"}]}, {"forNodes": [{"name": NODE}]})),
            "targetRef": pick((None, {"kind": "Pod", "namespace": "default", "name": "a"})),
        }

    def _pod(self, _name: str) -> Obj:
        pick = self._pick
        port = {"containerPort": 8080, "hostPort": pick((8080, 30080)), "protocol": "TCP"}
        return {
            "spec": {"nodeName": pick((NODE, NODE, "node-2")), "containers": [{"ports": [port]}]},
            "status": {"phase": pick(("Running", "Running", "Succeeded")), "podIPs": [{"ip": pick(PODS)}]},
        }

    def _backendstate(self, _name: str) -> Obj:
        pick = self._pick
        what = pick(({"address": f"{pick(PODS)}:8080/TCP"}, {"ref": "pod/default/a"}))
        return {"spec": {**what, "state": pick(("maintenance", "quarantined", "active"))}}


kinds = st.sampled_from(["Service", "EndpointSlice", "EndpointSlice", "Pod", "BackendState"])
names, numbers, counts = st.sampled_from(NAMES), st.integers(0, 40), st.integers(1, 6)
watched = st.sampled_from(["Service", "EndpointSlice", "EndpointSlice", "Node", "Pod", "BackendState"])
deeds = st.one_of(
    st.tuples(st.just("put"), kinds, names, numbers),
    st.tuples(st.just("put"), kinds, names, numbers),
    st.tuples(st.just("delete"), kinds, names),
    st.tuples(st.just("delete"), kinds, names),
    st.tuples(st.just("flap"), kinds, names, numbers),
    st.tuples(st.just("node"), st.sampled_from(["a", "b", ""])),
    st.tuples(st.just("send"), watched, counts, st.sampled_from(["in order", "twice", "shuffled"])),
    st.tuples(st.just("send"), watched, counts, st.sampled_from(["in order", "twice", "shuffled"])),
    st.tuples(st.just("bookmark"), watched),
    st.tuples(st.just("cut"), watched),
    st.tuples(st.just("end"), watched),
    st.tuples(st.just("compact")),
    st.tuples(st.just("fail"), st.sampled_from([0, 429, 500])),
    st.tuples(st.just("pass")),
)
scripts = st.lists(st.tuples(deeds, st.integers(0, 6)), max_size=40)
Script = list[tuple[tuple[Any, ...], int]]


class Listener:
    """A source on a server, and its changes, resolved at steps of the script."""

    def __init__(self, server: ScriptedServer, config: str) -> None:
        given = KubeSettings(kubeconfig=config, node_name=NODE, max_delete_ratio=100, timing=AT_ONCE)
        with mock.patch.object(kube_source, "KubeClient", return_value=server):
            self.source = kube_source.KubeSource(given)
        self.store = Store([self.source.name])
        self.resolver = Resolver(Options(NODE))
        self._pending: list[ObjectChange] = []

    def __call__(self, changes: Sequence[ObjectChange]) -> None:
        self._pending += self.store.apply(self.source.name, changes)

    def resolve(self) -> Any:
        self.resolver.update(self._pending)
        self._pending = []
        return self.resolver.resolve()


def do(server: ScriptedServer, listener: Listener, word: str, *more: Any) -> None:
    """Do a step of a script."""
    if word == "put":
        kind, name, number = more
        server.put(Variant(number).make(kind, name))
    elif word == "delete":
        kind, name = more
        server.delete(kind, name if kind == "BackendState" else f"default/{name}")
    elif word == "flap":  # it comes and goes, and both are sent at once, in some order
        do(server, listener, "put", *more)
        do(server, listener, "delete", *more[:2])
        do(server, listener, "send", more[0], 100, "shuffled")
    elif word == "node":
        (zone,) = more
        server.put(node(zone=zone)) if zone else server.delete("Node", NODE)
    elif word == "compact":
        server.compact()
    elif word == "fail":
        (code,) = more
        server.failures.append(ApiError(code) if code else ServerUnreachable("no connection"))
    elif word == "pass":
        listener.resolve()
    else:
        for watch in server.open(more[0]):
            getattr(watch, word)(*more[1:], *([[]] if word == "end" else []))


async def play(script: Script, server: ScriptedServer, config: str, *, from_start: bool) -> None:
    """Run a script, from the first request on or after the first lists, and compare the objects at the end."""
    listener = Listener(server, config)
    task = asyncio.create_task(listener.source.run(listener))
    if not from_start:
        await settle(server, listener, task)
    for (word, *more), turns in script:
        do(server, listener, word, *more)
        for _ in range(turns):
            await asyncio.sleep(0)
    await settle(server, listener, task)
    followed = listener.resolve()
    fresh = await fresh_snapshot(server, config)
    assert snapshot_of(listener.store.snapshot()) == snapshot_of(fresh)
    assert snapshot_of(listener.source.snapshot()) == snapshot_of(fresh)
    expected = resolve(fresh, Options(NODE))
    assert followed.state.services == expected.state.services
    assert followed.messages == expected.messages
    await cancel(task)


async def fresh_snapshot(server: ScriptedServer, config: str) -> ObjectSnapshot:
    """Return the objects of a source that starts now, on a server with only the current objects."""
    twin = ScriptedServer(random.Random(0), streams=True)
    twin.version, twin.compacted, twin.objects = server.version, server.version, server.objects
    listener = Listener(twin, config)
    task = asyncio.create_task(listener.source.run(listener))
    await settle(twin, listener, task)
    await cancel(task)
    return listener.source.snapshot()


async def settle(server: ScriptedServer, listener: Listener, task: asyncio.Task[None]) -> None:
    """Run until no event is pending."""
    for _ in range(MOST_TURNS):
        if task.done():
            task.result()
        if server.is_settled and listener.source.trusted and not listener.source.problems():
            return
        for watch in [each for each in server.watches if each.has_more]:
            watch.bookmark()
        await asyncio.sleep(0)
    raise AssertionError(f"it does not settle: {[str(each) for each in listener.source.problems()]}")


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def snapshot_of(snapshot: ObjectSnapshot) -> dict[str, Any]:
    return {field: dict(getattr(snapshot, field)) for field in snapshot.__struct_fields__}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("kube")
    return kubeconfig(folder, 1)


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts, st.booleans(), st.sampled_from([False, False, False, True]), st.integers(0, 1 << 30))
def test_any_interleaving_means_what_a_fresh_list_means(
    config: str, script: Script, streams: bool, from_start: bool, seed: int
) -> None:
    """Events, also twice and in another order; lists in pages or as streams, expired pages, watches that break or end, 410, 429."""
    server = ScriptedServer(random.Random(seed), streams=streams)
    server.put(node())
    for number, name in enumerate(NAMES):
        server.put(Variant(seed % 41 + number).make("Service", name))
        server.put(Variant(seed % 41 + number).make("EndpointSlice", name))
    asyncio.run(play(script, server, config, from_start=from_start))
