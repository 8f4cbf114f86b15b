"""Messages about values of a wrong type: plain words, the value, the field; for every type a field may have."""

from __future__ import annotations

import json

import pytest

from lbagent.objects.decode.decode_object import decode_object
from lbagent.objects.records import Origin
from lbagent.value_errors import MAX_SHOWN

WHOLE, FLAG, TEXT, LIST, MAPPING = "a whole number", "true or false", "a text", "a list", "a mapping"
# kind, field (dots and numbers), what is wanted there
FIELDS = [
    ("Service", "spec.ports.0.port", WHOLE),
    ("Service", "spec.ports.0.nodePort", WHOLE),
    ("Service", "spec.sessionAffinityConfig.clientIP.timeoutSeconds", WHOLE),
    ("Service", "spec.healthCheckNodePort", WHOLE),
    ("Service", "spec.type", TEXT),
    ("Service", "spec.clusterIPs.0", TEXT),
    ("Service", "spec.loadBalancerSourceRanges", LIST),
    ("Service", "spec.ports", LIST),
    ("Service", "spec.ports.0", MAPPING),
    ("Service", "spec", MAPPING),
    ("Service", "status.loadBalancer.ingress", LIST),
    ("Service", "metadata.annotations", MAPPING),
    ("EndpointSlice", "addressType", TEXT),
    ("EndpointSlice", "endpoints", LIST),
    ("EndpointSlice", "endpoints.0", MAPPING),
    ("EndpointSlice", "endpoints.0.addresses", LIST),
    ("EndpointSlice", "endpoints.0.conditions.ready", FLAG),
    ("EndpointSlice", "ports.0.port", WHOLE),
    ("Endpoints", "subsets", LIST),
    ("Endpoints", "subsets.0.ports.0.port", WHOLE),
    ("Node", "status.addresses", LIST),
    ("Pod", "spec.hostNetwork", FLAG),
    ("Pod", "spec.containers.0.ports.0.hostPort", WHOLE),
    ("Pod", "status.podIP", TEXT),
    ("BackendState", "spec.address", TEXT),
    ("BackendState", "spec.ref", TEXT),
    ("BackendState", "spec", MAPPING),
]
API = {"EndpointSlice": "discovery.k8s.io/v1", "BackendState": "lbagent.io/v1alpha1"}
SHOWN = [("http", "'http'"), (7, "7"), (1.5, "1.5"), (True, "true"), (False, "false")]


def message_about(kind: str, field: str, value: object, *, as_json: bool = False) -> tuple[str, str]:
    """Return (field, problem) of the first message about an object with one value in it."""
    metadata: dict[str, object] = {"name": "x", "labels": {"kubernetes.io/service-name": "web"}}
    document: dict[str, object] = {"apiVersion": API.get(kind, "v1"), "kind": kind, "metadata": metadata}
    holder: object = document
    *way, last = [int(step) if step.isdecimal() else step for step in field.split(".")]
    for step, following in zip(way, [*way, last][1:], strict=True):
        empty: object = [None] if isinstance(following, int) else {}
        if isinstance(holder, list):
            holder[0] = empty
            holder = holder[0]
        else:
            holder = holder.setdefault(step, empty)  # type: ignore[attr-defined]
    holder[last] = value  # type: ignore[index]
    decoded = decode_object(json.dumps(document).encode() if as_json else document, Origin("f.yaml", 1, 1))
    first = decoded.messages[0]
    return first.field, first.problem


def fits(value: object, wanted: str) -> bool:
    kinds = {WHOLE: int, FLAG: bool, TEXT: str}
    return type(value) is kinds.get(wanted)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("kind", "field", "wanted"), FIELDS)
def test_every_field_kind(kind: str, field: str, wanted: str, as_json: bool) -> None:
    where = "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in field.split(".")).removeprefix(".")
    for value, text in SHOWN:
        if not fits(value, wanted):
            assert message_about(kind, field, value, as_json=as_json) == (where, f"{text} is not {wanted}")
    for container, word in (([1], "a list"), ({"a": 1}, "a mapping")):
        if word != wanted:
            said = message_about(kind, field, container, as_json=as_json)
            assert said == (where, f"{wanted} is wanted, not {word}")


def test_the_whole_sentence_and_a_long_value() -> None:
    document = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": "x" * 500}]}
    }  # fmt: skip
    (message,) = decode_object(document, Origin("f.yaml", 1, 3)).messages
    text = str(message)
    assert text.startswith("f.yaml:3: Service default/web: spec.ports[0].port: 'xxx")
    assert text.endswith("x… is not a whole number; spec.ports[0] is left out")
    assert len(text) < 150 + MAX_SHOWN


def test_names_of_a_wrong_type() -> None:
    for name, problem in (
        (None, "the name is missing"), ("", "the name is missing"), ([], "a text is wanted, not a list"),
        (True, "true is not a text"), (1.5, "1.5 is not a text"),
    ):  # fmt: skip
        decoded = decode_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, Origin())
        assert (decoded.messages[0].field, decoded.messages[0].problem) == ("metadata.name", problem)
        assert decoded.is_unidentified
