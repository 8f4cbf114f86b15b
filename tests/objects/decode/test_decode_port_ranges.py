"""The annotation `lbagent.io/port-range`: its ranges, and the messages about wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from lbagent.model.address import L4Type
from lbagent.objects.decode.decode_object import decode_object
from lbagent.objects.records import Origin, Service, ServicePort

HERE = Origin(source="kube")
PORTS = [
    {"name": "sip", "port": 5060, "protocol": "UDP"},
    {"name": "rtp", "port": 10000, "protocol": "UDP", "nodePort": 30000},
    {"name": "web", "port": 80, "protocol": "TCP"},
]


def service(text: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a", "namespace": "n", "annotations": {"lbagent.io/port-range": text}},
        "spec": {"clusterIP": "10.96.0.1", "ports": PORTS},
    }


def decoded(text: str) -> tuple[Service, list[str]]:
    found = decode_object(service(text), HERE)
    assert isinstance(found.obj, Service)
    return found.obj, [str(message) for message in found.messages]


@pytest.mark.parametrize("text", ["rtp=10000-19999", " rtp = 10000 - 19999 "])
def test_one_range(text: str) -> None:
    found, messages = decoded(text)
    assert found.port_ranges == (ServicePort("rtp", L4Type.UDP, 10000, index=1, last_port=19999),)
    assert len(found.ports) == 3, "its port is served, too"
    assert messages == []


def test_several_ranges() -> None:
    found, messages = decoded("rtp=10000-19999, web=10000-10001,sip=1-65535")
    assert [(each.name, each.port, each.last_port) for each in found.port_ranges] == [
        ("rtp", 10000, 19999),
        ("web", 10000, 10001),
    ]
    (message,) = messages
    assert "the range 1-65535 overlaps with 10000-19999 of rtp" in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rpt=1-2", "the Service has no port 'rpt'; did you mean 'rtp'?"),
        ("x=1-2", "the Service has no port 'x'; it has sip, rtp, web"),
        ("rtp=", "'rtp=' is an empty range: write NAME=FIRST-LAST"),
        ("rtp", "'rtp' is an empty range: write NAME=FIRST-LAST"),
        ("", "'' is an empty range: write NAME=FIRST-LAST"),
        ("1-2", "'1-2' is an empty range: write NAME=FIRST-LAST"),
        ("rtp=5", "'rtp=5' is not NAME=FIRST-LAST"),
        ("rtp=-", "'' is not a port of 1-65535"),
        ("rtp=1-", "'' is not a port of 1-65535"),
        ("rtp=20-10", "the range 20-10 is reversed"),
        ("rtp=10-10", "the range 10-10 has one port only: write it in spec.ports"),
        ("rtp=0-10", "'0' is not a port of 1-65535"),
        ("rtp=1-65536", "'65536' is not a port of 1-65535"),
        ("rtp=a-b", "'a' is not a port of 1-65535"),
        ("rtp=1-2-3", "'2-3' is not a port of 1-65535"),
        ("rtp=1-99999999999999999999", "'99999999999999999999' is not a port of 1-65535"),
        ("rtp=１-２", "'１' is not a port of 1-65535"),
    ],
)
def test_wrong_ones(text: str, problem: str) -> None:
    """The message names object and field; the rest of the Service is served, the other ranges too."""
    for given in (text, f"sip=1-9,{text}"):
        found, messages = decoded(given)
        assert len(found.ports) == 3
        assert [each.name for each in found.port_ranges] == (["sip"] if given != text else [])
        (message,) = messages
        assert problem in message
        assert "Service n/a: metadata.annotations.lbagent.io/port-range" in message
        assert message.endswith("the range is left out")


def test_too_many() -> None:
    found, messages = decoded(",".join(f"rtp={n * 10}-{n * 10 + 1}" for n in range(1, 20)))
    assert len(found.port_ranges) == 16
    (message,) = messages
    assert "more than 16 ranges" in message
