"""What a running agent keeps of an object with new faults: v1 Endpoints and hostPorts of Pods, part by part."""

from __future__ import annotations

import copy
import json

import pytest

from lbagent.objects.records import LastGoodObject
from lbagent.sources.manifest.documents import parse

ENDPOINTS = {
    "apiVersion": "v1",
    "kind": "Endpoints",
    "metadata": {"name": "web", "namespace": "shop"},
    "subsets": [
        {
            "addresses": [
                {"ip": "10.244.1.2", "nodeName": "n1"},
                {"ip": "10.244.1.3", "targetRef": {"kind": "Pod", "name": "web-b"}},
            ],
            "notReadyAddresses": [{"ip": "10.244.1.4"}],
            "ports": [{"name": "http", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}],
        },
        {"addresses": [{"ip": "fd00::2"}], "ports": [{"port": 9090}]},
    ],
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-a", "namespace": "shop"},
    "spec": {
        "nodeName": "n1",
        "containers": [
            {
                "ports": [
                    {"containerPort": 8080, "hostPort": 80},
                    {"containerPort": 53, "hostPort": 53, "protocol": "UDP"},
                ]
            },
            {"ports": [{"containerPort": 9090, "hostPort": 90, "hostIP": "192.168.0.1"}]},
        ],
    },
    "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.1"}]},
}
FIRST, HTTP = ("subsets", 0), ("spec", "containers", 0)


def read(document, last=None):
    return parse(json.dumps(document), "x", "folder", lambda kind, key: LastGoodObject(last, 7) if last else None)


def good(document):
    ((_, obj),) = read(document).objects
    return obj


def spoilt(document, place, junk):
    """Return the document with something else at a place; `del` takes it out."""
    out = copy.deepcopy(document)
    holder = out
    for step in place[:-1]:
        holder = holder[step]
    if junk == "del":
        del holder[place[-1]]
    else:
        holder[place[-1]] = junk
    return out


@pytest.mark.parametrize("junk", ["junk", 800000, 1.5], ids=str)
@pytest.mark.parametrize(
    "place",
    [
        (*FIRST, "addresses", 0, "ip"), (*FIRST, "addresses", 1, "ip"), (*FIRST, "addresses", 0), (*FIRST, "addresses"),
        (*FIRST, "notReadyAddresses", 0, "ip"), (*FIRST, "notReadyAddresses"), (*FIRST, "ports", 0, "port"),
        (*FIRST, "ports", 1, "protocol"), (*FIRST, "ports", 1), (*FIRST, "ports"), FIRST, ("subsets", 1, "addresses", 0, "ip"),
        ("subsets", 1), ("subsets",),
    ],
    ids=str,
)  # fmt: skip
def test_a_faulty_part_of_endpoints_changes_nothing_of_them(place, junk):
    before = good(ENDPOINTS)
    parsed = read(spoilt(ENDPOINTS, place, junk), before)
    assert [obj for _, obj in parsed.objects] == [before]
    assert parsed.messages
    assert all(message.kept.endswith("of generation 7") for message in parsed.messages)


@pytest.mark.parametrize("junk", ["junk", 800000, 1.5], ids=str)
@pytest.mark.parametrize(
    "place",
    [
        (*HTTP, "ports", 0, "hostPort"), (*HTTP, "ports", 1, "containerPort"), (*HTTP, "ports", 1, "protocol"),
        (*HTTP, "ports", 0), (*HTTP, "ports"), HTTP, ("spec", "containers"), ("spec", "containers", 1, "ports", 0, "hostIP"),
    ],
    ids=str,
)  # fmt: skip
def test_a_faulty_part_of_a_pod_changes_none_of_its_host_ports(place, junk):
    before = good(POD)
    assert [port.port for port in before.host_ports] == [80, 53, 90]
    parsed = read(spoilt(POD, place, junk), before)
    assert [obj for _, obj in parsed.objects] == [before]
    assert parsed.messages
    assert all(message.kept.endswith("of generation 7") for message in parsed.messages)


def addresses(obj):
    return [str(endpoint.address[-1]) for piece in obj.slices for endpoint in piece.endpoints]


def test_what_else_changed_in_faulty_endpoints_counts():
    document = spoilt(ENDPOINTS, (*FIRST, "addresses", 0, "ip"), "junk")
    document["subsets"][0]["addresses"].append({"ip": "10.244.1.9"})
    document["subsets"][0]["notReadyAddresses"] = []
    document["subsets"][0]["ports"][0]["port"] = 8081
    ((_, obj),) = read(document, good(ENDPOINTS)).objects
    assert addresses(obj) == ["2", "3", "9", "2"]
    assert [port.port for port in obj.slices[0].ports] == [8081, 53]


def test_a_list_that_became_shorter_says_nothing_about_places():
    document = spoilt(ENDPOINTS, (*FIRST, "addresses", 1), "del")
    document["subsets"][0]["addresses"][0]["ip"] = "junk"
    parsed = read(document, good(ENDPOINTS))
    assert addresses(parsed.objects[0][1]) == ["4", "2"]
    assert str(parsed.messages[0]).endswith("the endpoint is left out")


def test_a_pod_names_its_endpoint_wherever_it_stands():
    document = spoilt(ENDPOINTS, (*FIRST, "addresses", 0), "del")
    document["subsets"][0]["addresses"][0]["ip"] = "junk"
    ((_, obj),) = read(document, good(ENDPOINTS)).objects
    assert addresses(obj) == ["3", "4", "2"]


def test_a_host_port_that_was_taken_out_goes_although_another_is_faulty():
    document = spoilt(POD, (*HTTP, "ports", 1), "del")
    document["spec"]["containers"][0]["ports"][0]["hostPort"] = 800000
    ((_, obj),) = read(document, good(POD)).objects
    assert [port.port for port in obj.host_ports] == [80, 90]


def test_a_host_port_that_another_container_has_now_is_not_kept_twice():
    document = spoilt(POD, (*HTTP, "ports", 0, "hostPort"), 800000)
    document["spec"]["containers"][1]["ports"][0] = {"containerPort": 8080, "hostPort": 80}
    ((_, obj),) = read(document, good(POD)).objects
    assert [(port.port, port.target_port) for port in obj.host_ports] == [(53, 53), (80, 8080)]
