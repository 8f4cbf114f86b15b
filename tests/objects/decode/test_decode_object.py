"""The entry of every source: a mapping or JSON to a record, and other input."""

from __future__ import annotations

import json

import pytest

from lbagent.objects.decode.decode_object import decode_json, decode_object
from lbagent.objects.records import Origin, StateOverride
from tests.objects.kinds import kind_of

HERE = Origin(source="kube")
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}


def test_a_mapping_and_its_json_give_the_same_record() -> None:
    decoded = decode_object(json.dumps(NODE).encode(), HERE)
    assert decoded == decode_object(json.loads(json.dumps(NODE)), HERE)
    assert (decoded.kind, decoded.key, decoded.messages) == ("Node", "n", ())
    assert decoded.obj is not None
    assert decoded.obj.origin.source == "kube"


@pytest.mark.parametrize(
    ("raw", "field", "problem"),
    [
        (b"{", "", "not JSON: "),
        (b"[]", "", "a mapping is wanted, not a list"),
        (b"5", "", "5 is not a mapping"),
        (b"{}", "apiVersion", "it is missing"),
        (b'{"apiVersion": "v1", "kind": ["Node"]}', "kind", "a text is wanted, not a list"),
        (b'{"apiVersion": 1, "kind": "Node"}', "apiVersion", "1 is not a text"),
    ],
)
def test_what_does_not_say_which_object_it_is(raw: bytes, field: str, problem: str) -> None:
    decoded = decode_object(raw, HERE)
    assert decoded.obj is None
    assert decoded.is_unidentified
    (message,) = decoded.messages
    assert message.field == field
    assert message.problem.startswith(problem)
    assert not message.warning


@pytest.mark.parametrize("api", ["v1", "apps/v1", "discovery.k8s.io/v1"])
def test_other_kinds_are_passed_over(api: str) -> None:
    decoded = decode_object({"apiVersion": api, "kind": "ConfigMap", "metadata": {"name": "x"}}, HERE)
    assert (decoded.obj, decoded.messages, decoded.is_unidentified) == (None, (), False)


def test_a_kind_of_ours_without_effect_is_a_warning() -> None:
    decoded = decode_object({"apiVersion": "lbagent.io/v1", "kind": "HealthCheck"}, HERE)
    assert [message.warning for message in decoded.messages] == [True]
    assert not decoded.is_unidentified


def test_the_kind_of_a_record_is_kubernetes_word() -> None:
    assert kind_of(StateOverride("x", None, None, pod="a/b")) == "BackendState"  # type: ignore[arg-type]


def backend_state(**spec: object) -> dict[str, object]:
    return {"apiVersion": "lbagent.io/v1alpha1", "kind": "BackendState", "metadata": {"name": "b"}, "spec": spec}


def test_a_backend_state_names_an_address_or_a_pod() -> None:
    of_address = decode_object(backend_state(address="10.0.0.1:80", state="maintenance"), HERE).obj
    of_pod = decode_object(backend_state(ref="pod/shop/web-0", state="maintenance"), HERE).obj
    assert isinstance(of_address, StateOverride)
    assert isinstance(of_pod, StateOverride)
    assert (of_address.subject, of_address.pod) == ("10.0.0.1:80/TCP", "")
    assert (of_pod.subject, of_pod.address, of_pod.pod) == ("pod/shop/web-0", None, "shop/web-0")


@pytest.mark.parametrize(
    ("spec", "field", "problem"),
    [
        ({"state": "active"}, "spec.address", "the address is missing"),
        ({"ref": "pod/web-0", "state": "active"}, "spec.ref", "'pod/web-0' is not a reference of the form"),
        ({"ref": "web-0", "state": "active"}, "spec.ref", "'web-0' is not a reference of the form"),
        ({"ref": "pod/a/b/c", "state": "active"}, "spec.ref", "'pod/a/b/c' is not a reference of the form"),
        ({"ref": "pod/a/b", "address": "10.0.0.1:80", "state": "active"}, "spec.ref", "spec.address is given too"),
        ({"ref": "pod/a/b", "address": 5, "state": "active"}, "spec.address", "5 is not a text"),
        ({"ref": "pod/a/b"}, "spec.state", "the state is missing"),
        ({"ref": "pod/a/b", "state": "terminating"}, "spec.state", "'terminating' cannot be set"),
    ],
)
def test_backend_states_that_are_refused(spec: dict[str, object], field: str, problem: str) -> None:
    decoded = decode_object(backend_state(**spec), HERE)
    assert decoded.obj is None
    assert decoded.messages[0].field == field
    assert decoded.messages[0].problem.startswith(problem)


META = {
    "name": "a",
    "namespace": "b",
    "labels": {"kubernetes.io/service-name": "a"},
    "uid": "x",
    "managedFields": [{"f": 1}],
}
SAMPLES = [
    {"kind": "Service", "spec": {"clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}], "unknown": {"a": [1]}}},
    {"kind": "Service", "spec": {"clusterIPs": ["10.0.0.1", 5], "ports": [{"port": "http"}, {"port": 81}]}},
    {"kind": "Service", "spec": {"clusterIPs": "10.0.0.1"}, "status": 7},
    {"kind": "Service", "spec": {"clusterIPs": ["010.0.0.1"], "ports": [{"port": 80000, "protocol": "x"}]}},
    {"kind": "Service", "spec": []},
    {
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.2"]}],
        "ports": [{"port": 8}],
    },
    {"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [{"addresses": [2]}, {"addresses": ["10.0.0.2"]}]},
    {"kind": "Pod", "spec": {"nodeName": "n", "containers": [{"ports": [{"hostPort": 1, "containerPort": 2}]}]}},
    {"kind": "Node", "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.3"}]}},
    {"kind": "BackendState", "spec": {"address": "10.0.0.1:80/TCP", "state": "maintenance"}},
    {"kind": "BackendState", "spec": {"address": "10.0.0.1:80/TCP", "state": "gone"}},
]
API_VERSIONS = {"EndpointSlice": "discovery.k8s.io/v1", "BackendState": "lbagent.io/v1alpha1"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["kind"])
@pytest.mark.parametrize("meta", [META, {"name": "a"}, {}, {"name": 5, "namespace": []}, None])
def test_an_object_that_does_not_say_its_kind_gives_the_same(sample: dict, meta: dict | None) -> None:
    """As items of the API's lists: the same record and the same messages for any fault."""
    kind, origin = sample["kind"], Origin(source="kube")
    bare = {key: value for key, value in sample.items() if key != "kind"} | (
        {"metadata": meta} if meta is not None else {}
    )
    whole = {"apiVersion": API_VERSIONS.get(kind, "v1"), "kind": kind, **bare}
    assert decode_json(kind, json.dumps(bare).encode(), origin) == decode_object(whole, origin)


@pytest.mark.parametrize("raw", [b"", b"{", b"5", b"[]", b"null"])
def test_json_that_is_no_object_is_unidentified(raw: bytes) -> None:
    found = decode_json("Service", raw, Origin(source="kube"))
    assert (found.obj, found.is_unidentified, len(found.messages)) == (None, True, 1)
