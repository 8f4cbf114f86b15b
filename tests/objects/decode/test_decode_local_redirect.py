"""Local redirects of both kinds: one record, and the messages about wrong parts."""

from __future__ import annotations

from typing import Any

import pytest

from lbagent.model.address import L4Type, parse_ip
from lbagent.objects.decode.decode_object import DecodedObject, decode_object
from lbagent.objects.records import LastGoodObject, LocalRedirect, Origin, RedirectPort

HERE = Origin(source="kube")
TCP, UDP = L4Type.TCP, L4Type.UDP
OURS, CILIUM = ("lbagent.io/v1alpha1", "LocalRedirectPolicy"), ("cilium.io/v2", "CiliumLocalRedirectPolicy")
OF_SERVICE = {"serviceMatcher": {"serviceName": "kube-dns", "namespace": "kube-system"}}
BACKEND = {
    "localEndpointSelector": {"matchLabels": {"k8s-app": "cache"}},
    "toPorts": [{"port": "53", "name": "DNS", "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
}


def decoded(
    frontend: Any = OF_SERVICE,
    backend: Any = BACKEND,
    kind: tuple[str, str] = OURS,
    annotations: dict[str, str] | None = None,
    last: LocalRedirect | None = None,
    **spec: Any,
) -> DecodedObject:
    raw = {
        "apiVersion": kind[0], "kind": kind[1],
        "metadata": {"name": "p", "namespace": "kube-system", "annotations": annotations or {}},
        "spec": {"redirectFrontend": frontend, "redirectBackend": backend, **spec},
    }  # fmt: skip
    return decode_object(raw, HERE, last=lambda _kind, _key: LastGoodObject(last, 3) if last else None)


def problems(found: DecodedObject) -> dict[str, str]:
    return {message.field: message.problem for message in found.messages}


@pytest.mark.parametrize("kind", [OURS, CILIUM])
def test_a_service_is_redirected(kind: tuple[str, str]) -> None:
    found = decoded(kind=kind, skipRedirectFromBackend=True, annotations={"lbagent.io/when-empty": "drop"})
    assert found.messages == ()
    policy = found.obj
    assert isinstance(policy, LocalRedirect)
    assert (policy.kind, policy.key, policy.service, policy.address) == (kind[1], "kube-system/p", "kube-dns", None)
    assert policy.backend_ports == (RedirectPort(53, UDP, "dns"), RedirectPort(53, TCP, ""))
    assert dict(policy.selector) == {"k8s-app": "cache"}
    assert policy.skips_backends
    assert policy.drops_when_empty
    assert policy.frontend_ports == ()


@pytest.mark.parametrize("address", ["169.254.169.254", "192.0.2.1", "2001:db8::1"])
def test_an_address_is_redirected(address: str) -> None:
    policy = decoded({"addressMatcher": {"ip": address, "toPorts": [{"port": 80, "protocol": "TCP"}]}}).obj
    assert isinstance(policy, LocalRedirect)
    assert policy.address == parse_ip(address)
    assert policy.frontend_ports == (RedirectPort(80, TCP, ""),)
    assert not policy.skips_backends
    assert not policy.drops_when_empty


PORTS = [{"port": 80, "protocol": "TCP"}]
FRONTEND = "spec.redirectFrontend"


@pytest.mark.parametrize(
    ("frontend", "field"),
    [
        ({}, FRONTEND),
        ({**OF_SERVICE, "addressMatcher": {"ip": "192.0.2.1", "toPorts": PORTS}}, f"{FRONTEND}.serviceMatcher"),
        ({"serviceMatcher": {}}, f"{FRONTEND}.serviceMatcher.serviceName"),
        ({"serviceMatcher": {"serviceName": "x", "namespace": "y"}}, f"{FRONTEND}.serviceMatcher.namespace"),
        ({"addressMatcher": {"ip": "192.0.2.1"}}, f"{FRONTEND}.addressMatcher.toPorts"),
        *(
            ({"addressMatcher": {"ip": each, "toPorts": PORTS}}, f"{FRONTEND}.addressMatcher.ip")
            for each in ("", "none", "127.0.0.1", "0.0.0.0", "224.0.0.1", "fe80::1", "::")
        ),
        *(
            (
                {"addressMatcher": {"ip": "192.0.2.1", "toPorts": [{"port": each, "protocol": "TCP"}]}},
                f"{FRONTEND}.addressMatcher.toPorts[0].port",
            )
            for each in (0, 65536, "http", "-1", "1.5", True, None)
        ),
        (
            {"addressMatcher": {"ip": "192.0.2.1", "toPorts": [*PORTS, *PORTS]}},
            f"{FRONTEND}.addressMatcher.toPorts[1].port",
        ),
        ("text", FRONTEND),
    ],
)
def test_a_wrong_frontend(frontend: Any, field: str) -> None:
    found = decoded(frontend)
    assert found.obj is None
    assert list(problems(found)) == [field]


@pytest.mark.parametrize(
    ("backend", "field"),
    [
        ({"toPorts": PORTS}, "spec.redirectBackend.localEndpointSelector.matchLabels"),
        ({**BACKEND, "localEndpointSelector": {}}, "spec.redirectBackend.localEndpointSelector.matchLabels"),
        (
            {**BACKEND, "localEndpointSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a"}]}},
            "spec.redirectBackend.localEndpointSelector.matchExpressions",
        ),
        ({**BACKEND, "toPorts": []}, "spec.redirectBackend.toPorts"),
        ({**BACKEND, "toPorts": [{"port": 1, "protocol": "ICMP"}]}, "spec.redirectBackend.toPorts[0].protocol"),
    ],
)
def test_a_wrong_backend(backend: Any, field: str) -> None:
    found = decoded(backend=backend)
    assert found.obj is None
    assert list(problems(found)) == [field]


def test_a_policy_that_becomes_wrong_stays_as_it_was() -> None:
    before = decoded().obj
    assert isinstance(before, LocalRedirect)
    found = decoded({}, last=before)
    assert found.obj is None
    assert found.last is not None
    assert found.last.obj is before


def test_an_unknown_word_of_the_annotation_is_named() -> None:
    found = decoded(annotations={"lbagent.io/when-empty": "reject"})
    assert isinstance(found.obj, LocalRedirect)
    assert not found.obj.drops_when_empty
    assert "one of original, drop" in problems(found)["metadata.annotations.lbagent.io/when-empty"]
