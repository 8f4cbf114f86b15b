"""Which backends a Pod has: its endpoints in slices and in Endpoints, and its hostPorts."""

from __future__ import annotations

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.cooperative import run_whole
from lbagent.objects.records import (
    Endpoint,
    Endpoints,
    EndpointSlice,
    HostPort,
    LocalRedirect,
    ObjectSnapshot,
    Pod,
    RedirectPort,
    SlicePort,
)
from lbagent.resolve.pod_backends import backends_of_pod, pods_at

PORTS = (SlicePort("http", L4Type.TCP, 8080), SlicePort("dns", L4Type.UDP, 53))
ENDPOINTS = (Endpoint(b"\x0a\0\0\1", pod="a/p"), Endpoint(b"\x0a\0\0\2", pod="a/q"), Endpoint(b"\x0a\0\0\3"))


def every_place() -> ObjectSnapshot:
    piece = EndpointSlice("a", "s-1", "s", 4, ports=PORTS, endpoints=ENDPOINTS)
    legacy = EndpointSlice("a", "t", "t", 4, ports=(SlicePort("", L4Type.TCP, 9),), endpoints=ENDPOINTS, legacy=True)
    pod = Pod("a", "p", ips=(b"\x0a\0\0\1",), host_ports=(HostPort(80, 8000, L4Type.TCP),))
    return ObjectSnapshot(
        slices={piece.key: piece}, endpoints={"a/t": Endpoints("a", "t", slices=(legacy,))}, pods={"a/p": pod}
    )


def test_every_place_that_names_the_pod() -> None:
    objects = every_place()
    texts = ("10.0.0.1:8080/TCP", "10.0.0.1:53/UDP", "10.0.0.1:9/TCP", "10.0.0.1:8000/TCP")
    assert backends_of_pod([ObjectSnapshot(), objects], "a/p") == set(map(L3n4Addr.parse, texts))
    assert backends_of_pod([objects], "a/unknown") == set()


def test_whose_a_backend_is() -> None:
    texts = ("10.0.0.1:8080/TCP", "10.0.0.2:9/TCP", "10.0.0.1:8000/TCP", "10.0.0.3:53/UDP", "10.0.0.1:8080/UDP")
    asked = [L3n4Addr.parse(text) for text in texts]
    found = run_whole(pods_at([ObjectSnapshot(), every_place()], asked))
    assert {address.with_protocol(): pod for address, pod in found.items()} == {
        "10.0.0.1:8080/TCP": "a/p",
        "10.0.0.2:9/TCP": "a/q",
        "10.0.0.1:8000/TCP": "a/p",
    }


def test_the_ports_behind_a_local_redirect_are_backends_of_its_pods() -> None:
    pod = Pod("a", "p", ips=(b"\x0a\0\0\1",), labels={"app": "x", "tier": "1"})
    ports = (RedirectPort(53, L4Type.UDP),)
    mine = LocalRedirect("LocalRedirectPolicy", "a", "r", selector={"app": "x"}, backend_ports=ports)
    other = LocalRedirect("CiliumLocalRedirectPolicy", "b", "r", selector={"app": "x"}, backend_ports=ports)
    backend = L3n4Addr.parse("10.0.0.1:53/UDP")
    objects = ObjectSnapshot(pods={"a/p": pod}, local_redirects={"a/r": mine})
    assert backends_of_pod([objects], "a/p") == {backend}
    assert run_whole(pods_at([objects], [backend])) == {backend: "a/p"}
    assert backends_of_pod([ObjectSnapshot(pods={"a/p": pod}, cilium_local_redirects={"b/r": other})], "a/p") == set()
