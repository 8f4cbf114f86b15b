"""Any manifest results in objects and messages, never in an exception of another kind."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.model.address import L4Type
from lbagent.objects.records import EndpointSlice, LastGoodObject, ObjectChange, Service
from lbagent.resolve import Options, Resolver
from lbagent.sources.manifest.documents import parse
from lbagent.textfile.read_text import UnreadableManifest, decode_text, read_text

GOOD = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "creationTimestamp": "2024-05-01T00:00:00Z",
            "labels": {"a": "b"},
            "annotations": {"lbagent.io/algorithm": "maglev", "lbagent.io/stale-flows": "keep", "lbagent.io/l7-proxy-port": "1"},
        },
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": ["192.0.2.1"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080, "targetPort": "http"}],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "healthCheckNodePort": 31000,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "VIP"}]}},
    },
    {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"},
                     "annotations": {"lbagent.io/weight": "5"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{
            "addresses": ["10.244.1.1"], "nodeName": "n1", "zone": "a", "targetRef": {"kind": "Pod", "name": "web-a"},
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]},
        }],
    },
    {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "web", "namespace": "shop"},
        "subsets": [{"addresses": [{"ip": "10.244.1.2", "nodeName": "n1"}], "notReadyAddresses": [{"ip": "10.244.1.3"}],
                     "ports": [{"name": "http", "port": 8080}]}],
    },
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]},
    },
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-a", "namespace": "shop"},
        "spec": {"nodeName": "n1", "hostNetwork": False,
                 "containers": [{"ports": [{"containerPort": 8080, "hostPort": 80, "hostIP": "", "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": "10.244.1.1", "podIPs": [{"ip": "10.244.1.1"}]},
    },
    {
        "apiVersion": "lbagent.io/v1alpha1",
        "kind": "BackendState",
        "metadata": {"name": "x"},
        "spec": {"address": "10.244.1.1:8080/TCP", "state": "maintenance", "node": "n1"},
    },
]  # fmt: skip


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


PLACES = [place for place in places(GOOD) if place]
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 70000),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "0.0.0.0",
            "::",
            "1.2.3.4/33",
            "10.0.0.1",
            "fd00::1%eth0",
            "None",
            "IPv4",
            "ClientIP",
            "Local",
            "65536",
            "\x00\n",
        ]
    ),
    st.just([]),
    st.just({}),
    st.just([None]),
    st.just([[[]]]),
    st.just([{"x": {}}]),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def attempt(text):
    """Return (what was parsed, why nothing was): one of them is None."""
    try:
        return parse(text, "x", "folder"), None
    except UnreadableManifest as error:
        return None, error.message


def last_good(kind, key):
    for document in GOOD:
        ((_, obj),) = parse(json.dumps(document), "x", "folder").objects
        if document["kind"] == kind and obj.key == key:
            return LastGoodObject(obj, 7)
    return None


@pytest.mark.parametrize("place", [("ports", 0, "port"), ("ports", 0), ("ports",), ("clusterIPs", 1), ("clusterIPs",),
                                   ("externalIPs", 0), ("externalIPs",), ("ipFamilies",), ("type",),
                                   ("externalTrafficPolicy",), ("sessionAffinity",), ("sessionAffinityConfig",),
                                   ("loadBalancerSourceRanges", 0), ("loadBalancerSourceRanges",), ()])  # fmt: skip
@pytest.mark.parametrize("junk", ["junk", 800000, 1.5], ids=str)
def test_a_faulty_part_of_a_service_changes_nothing_of_it(place, junk):
    document = copy.deepcopy(GOOD[0])
    ((_, good),) = parse(json.dumps(document), "x", "folder").objects
    holder = document
    for step in ("spec", *place)[:-1]:
        holder = holder[step]
    holder[("spec", *place)[-1]] = junk
    parsed = parse(json.dumps(document), "x", "folder", last_good)
    ((_, service),) = parsed.objects
    assert service == good
    assert any(str(message).endswith("of generation 7") for message in parsed.messages)


def resolved(parsed):
    resolver = Resolver(Options("n1", (bytes((192, 168, 0, 1)),), keep_existing=True))
    resolver.update(ObjectChange(kind, obj.key, None, obj) for kind, obj in parsed.objects)
    return resolver.resolve().state.services


def test_the_good_one_is_good():
    parsed = parse(json.dumps({"apiVersion": "v1", "kind": "List", "items": GOOD}), "x", "folder")
    assert len(parsed.objects) == len(GOOD)
    (l7,) = map(str, parsed.messages)
    note = "x:1: Service shop/web: metadata.annotations.lbagent.io/"
    assert l7 == f"{note}l7-proxy-port: cannot go with sessionAffinity; it is ignored"
    assert len(resolved(parsed)) > 6


def test_a_kind_that_is_no_word_stays_in_its_line():
    """A message is one line of the log."""
    for kind, version in (("\n", "lbagent.io/v1alpha1"), ("Policy", "lbagent.io/\n")):
        parsed, _ = attempt(json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}))
        (message,) = parsed.messages
        assert "\n" not in str(message)
        assert "is not acted on by this version" in str(message)


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), junk), min_size=1, max_size=4))
def test_any_junk_at_any_place_is_a_message_and_costs_little_else(changes):
    documents = copy.deepcopy(GOOD)
    for place, value in changes:
        holder = documents
        try:
            for step in place[:-1]:
                holder = holder[step]
            holder[place[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    text = "\n---\n".join(json.dumps(document) for document in documents)
    parsed, failure = attempt(text)
    if parsed is None:
        assert failure.line > 0
        return
    for message in parsed.messages:
        assert message.line > 0
        assert "\n" not in str(message)
    touched = {place[0] for place, _ in changes}
    for index, document in enumerate(documents):
        if index not in touched:
            assert any(kind == document["kind"] for kind, _ in parsed.objects)
    resolved(parsed)
    kept = parse(text, "x", "folder", last_good)
    assert bool(kept.messages) == bool(parsed.messages)
    assert {(kind, obj.key) for kind, obj in kept.objects} >= {(kind, obj.key) for kind, obj in parsed.objects}
    assert bool(kept.kept) == any(each.kept.startswith("kept ") for each in kept.messages)
    resolved(kept)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60), st.integers(0, 2000))
def test_any_text_parses_or_says_where_it_does_not(noise, at):
    text = json.dumps(GOOD[0], indent=1)
    for candidate in (noise, text[:at] + noise + text[at:], text[:at]):
        parsed, failure = attempt(candidate)
        assert parsed is not None or failure.problem


def test_a_service_as_it_is_read():
    text = json.dumps(GOOD[0]).replace('"lbagent.io/l7-proxy-port"', '"note"')
    ((_, service),) = parse(text, "f.json", "folder").objects
    assert isinstance(service, Service)
    assert service.key == "shop/web"
    assert service.families == (4, 6)
    assert service.created == 1714521600.0
    assert service.ports[0].protocol is L4Type.TCP
    assert (service.ports[0].port, service.ports[0].node_port) == (80, 30080)
    assert service.affinity_timeout_s == 60
    assert service.external_local
    assert not service.internal_local
    assert service.health_check_node_port == 31000


def test_nil_conditions_are_kube_proxys():
    text = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{port: 1}]
endpoints:
- addresses: ["fd00::1"]
- addresses: ["fd00::2"]
  conditions: {ready: null, serving: null, terminating: null}
- addresses: ["fd00::3"]
  conditions: {ready: false, terminating: true}
"""
    ((_, piece),) = parse(text, "f", "folder").objects
    assert isinstance(piece, EndpointSlice)
    assert [(e.ready, e.serving, e.terminating) for e in piece.endpoints] == [
        (True, True, False), (True, True, False), (False, True, True)
    ]  # fmt: skip


@pytest.mark.long
def test_bounds():
    endpoints = [{"addresses": [f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"]} for n in range(70_000)]
    document = GOOD[1] | {"endpoints": endpoints}
    parsed = parse(json.dumps(document), "x", "folder")
    assert len(parsed.objects[0][1].endpoints) == 65535
    assert "more than 65535 endpoints" in str(parsed.messages[-1])
    ports = [{"name": str(n), "port": n + 1} for n in range(2000)]
    parsed = parse(json.dumps(GOOD[0] | {"spec": {"clusterIP": "10.96.0.1", "ports": ports}}), "x", "folder")
    assert len(parsed.objects[0][1].ports) == 1000


TWINS = """{"apiVersion": "v1",
 "kind": "Service",
 "metadata": {"name": "a"},
 "spec": {"clusterIP": "10.96.0.1",
          "clusterIP": "10.96.0.2"}}
"""


@pytest.mark.parametrize(
    "text", [TWINS, '{"apiVersion": "v1", "kind": "List",\n\n\n "items": [\n' + TWINS.replace("\n", " ") + "]}"]
)
def test_a_key_that_is_there_twice_is_refused_in_json_too(text):
    parsed, failure = attempt(text)
    assert parsed is None
    assert str(failure) == "x:5: the key 'clusterIP' is given twice"


def test_a_key_twice_in_json_that_is_no_yaml():
    parsed, failure = attempt('{"a": 1,\n\t"a": 2}')
    assert parsed is None
    assert "the key 'a' is given twice" in str(failure)


def test_too_many_lists_in_one_another_are_said():
    text = '{"kind": "List", "apiVersion": "v1", "items": [' * 5 + "]}" * 5
    parsed, failure = attempt(text)
    assert parsed is None
    assert "Lists in one another" in str(failure)


@pytest.mark.parametrize("port", [9**380, -1, 65536])
def test_a_message_is_no_longer_than_somebody_reads(port):
    document = copy.deepcopy(GOOD[0])
    document["spec"]["healthCheckNodePort"] = port
    parsed, _ = attempt(json.dumps(document))
    assert parsed.objects[0][1].health_check_node_port == 0
    (text,) = [str(message) for message in parsed.messages if message.field == "spec.healthCheckNodePort"]
    assert len(text) < 500
    assert "spec.healthCheckNodePort: " in text


def test_a_deep_document_is_refused():
    with pytest.raises(UnreadableManifest):
        parse('{"a":' * 100_000 + "1" + "}" * 100_000, "x", "folder")


def test_files_that_are_none(tmp_path):
    import os

    (tmp_path / "latin").write_bytes(b"a: 1\nb: \xe4\n")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("latin", "not UTF-8"),
        ("pipe", "not a regular file"),
        ("none", "No such file"),
        (".", "not a regular file"),
    ):
        with pytest.raises(UnreadableManifest, match=words):
            read_text(str(tmp_path / name))


def test_a_byte_order_mark_is_no_content():
    assert decode_text(b"\xef\xbb\xbfa: 1", "x") == "a: 1"


@pytest.mark.parametrize("name", ["", "x" * 254, "a\nb", None, [], {}])
def test_names_that_are_none(name):
    parsed = parse(json.dumps(GOOD[0] | {"metadata": {"name": name}}), "x", "folder")
    assert parsed.objects == ()
    assert [message.field for message in parsed.unidentified] == ["metadata.name"]
