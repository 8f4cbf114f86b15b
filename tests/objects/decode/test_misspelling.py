"""Misspelt fields of manifests: the valid fields are those of Kubernetes' API, and a running agent keeps last good values."""

from __future__ import annotations

import kubernetes.client
import pytest

from lbagent.model.address import format_ip
from lbagent.nearest_word import nearest
from lbagent.objects.decode import wire
from lbagent.objects.decode.decode_object import decode_object
from lbagent.objects.decode.misspelling import MAX_FOUND, NOT_READ, misspelt_fields
from lbagent.objects.records import LastGoodObject, Origin

# the shapes of wire.py that have another name, or several, in Kubernetes' own client
MODELS = {
    "Meta": ["V1ObjectMeta"],
    "Port": ["V1ServicePort", "DiscoveryV1EndpointPort", "CoreV1EndpointPort"],
    "ClientIP": ["V1ClientIPConfig"],
    "AffinityConfig": ["V1SessionAffinityConfig"],
    "Ingress": ["V1LoadBalancerIngress"],
    "Conditions": ["V1EndpointConditions"],
    "HintTarget": ["V1ForZone", "V1ForNode"],
    "Hints": ["V1EndpointHints"],
    "ObjectReference": ["V1ObjectReference"],
    "Address": ["V1EndpointAddress"],
    "Subset": ["V1EndpointSubset"],
    "BackendState": [],
    "BackendStateSpec": [],
    "LocalRedirectPolicy": [],
    "LocalRedirectSpec": [],
    "RedirectFrontend": [],
    "RedirectBackend": [],
    "RedirectPort": [],
    "AddressMatcher": [],
    "ServiceMatcher": [],
}
SHAPES = {
    name: shape for name, shape in vars(wire).items() if isinstance(shape, type) and shape.__module__ == wire.__name__
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_field_of_kubernetes_is_known(name: str) -> None:
    """A field that a shape lacks would be reported as a misspelling of one that it has."""
    shape = SHAPES[name]
    known = {*shape.__struct_fields__, *NOT_READ.get(shape, "").split(), "apiVersion", "kind"}
    for model in MODELS.get(name, [f"V1{name}"]):
        assert set(getattr(kubernetes.client, model).attribute_map.values()) <= known


def test_fields_are_found_at_every_depth() -> None:
    raw = {
        "metadata": {"nmae": "web", "annotations": {"clsterIP": "free text"}},
        "spec": {"prots": [{"port": 80}, {"potr": 81, "x": {}}], "ports": []},
        "sepc": 1,  # two letters are exchanged
        "unknown": 2,
        7: 3,
    }
    found = misspelt_fields(raw, wire.Service)
    assert sorted((each.path, each.probable, each.is_given) for each in found) == [
        (("metadata", "nmae"), ("metadata", "name"), False),
        (("sepc",), ("spec",), True),
        (("spec", "prots"), ("spec", "ports"), True),
    ]
    raw["spec"] = {"ports": [{"port": 80}, {"prot": 81}, None, "x"]}
    assert (("spec", "ports", 1, "prot"), ("spec", "ports", 1, "port"), False) in misspelt_fields(raw, wire.Service)


def test_the_number_of_found_fields_is_bounded() -> None:
    raw = {"spec": {"ports": [{"prot": 1}] * 1000}}
    assert len(misspelt_fields(raw, wire.Service)) == MAX_FOUND


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("clsterIP", ["clusterIP", "clusterIPs"], "clusterIP"),
        ("CLUSTERIP", ["clusterIP"], "clusterIP"),
        ("clusterIP", ["clusterIP", "clusterIPs"], ""),
        ("selector", ["clusterIP", "ports"], ""),
        ("x" * 101, ["x" * 100], ""),
        (7, ["7"], ""),
        ("", ["a"], ""),
    ],
)
def test_nearest(word: object, known: list[str], found: str) -> None:
    assert nearest(word, known) == found


def test_a_running_agent_keeps_the_value_of_the_field_that_was_meant() -> None:
    origin = Origin("a.yaml", 1, 1, "folder")

    def service(**spec: object) -> dict[str, object]:
        ports = [{"port": 80}]
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": ports} | spec}

    good = decode_object(service(clusterIP="10.96.0.1"), origin).obj
    assert good is not None
    bad = decode_object(service(clsterIP="10.96.0.1"), origin, last=lambda _kind, _key: LastGoodObject(good, 4))
    assert [format_ip(each) for each in bad.obj.cluster_ips] == ["10.96.0.1"]
    assert [each.kept for each in bad.messages] == ["kept 10.96.0.1 of generation 4"]
    both = service(clsterIP="10.96.0.1", clusterIP="10.96.0.2")
    given = decode_object(both, origin, last=lambda _kind, _key: LastGoodObject(good, 4))
    assert [format_ip(each) for each in given.obj.cluster_ips] == ["10.96.0.2"]
    assert [each.kept for each in given.messages] == ["it is ignored: clusterIP is used as it is given"]


def test_objects_of_an_api_server_are_not_searched() -> None:
    """It prunes unknown fields; slices without a Service may be those of another controller."""
    api = Origin(source="kubernetes")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"clsterIP": "10.96.0.1"}}
    piece = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "x"},
        "addressType": "IPv4",
    }
    assert [decode_object(raw, api).messages for raw in (service, piece)] == [(), ()]
