"""The annotation `lbagent.io/health-check`: its words, and the messages about wrong ones."""

from __future__ import annotations

import pytest

from lbagent.objects.decode.decode_health_check import parse_health_check
from lbagent.objects.decode.decode_object import decode_object
from lbagent.objects.records import Origin, Service
from lbagent.probes.probe_spec import ProbeKind

HERE = Origin(source="kube")


def test_a_type_alone_has_the_defaults() -> None:
    found = parse_health_check("tcp")
    probe = found.probe
    assert (probe.kind, probe.interval, probe.timeout, probe.rise, probe.fall) == (ProbeKind.TCP, 5.0, 1.0, 2, 3)
    assert (found.port, found.local_only) == (0, False)


@pytest.mark.parametrize(
    ("text", "kind", "port", "path"),
    [
        ("tcp:81", ProbeKind.TCP, 81, ""),
        ("udp", ProbeKind.UDP, 0, ""),
        ("http", ProbeKind.HTTP, 0, "/"),
        ("http:8081/healthz?full=1", ProbeKind.HTTP, 8081, "/healthz?full=1"),
        ("grpc:50051", ProbeKind.GRPC, 50051, ""),
        ("grpc/shop.Cart", ProbeKind.GRPC, 0, "/shop.Cart"),
        ("https/a:b=c", ProbeKind.HTTPS, 0, "/a:b=c"),
    ],
)
def test_type_port_and_path(text: str, kind: ProbeKind, port: int, path: str) -> None:
    found = parse_health_check(text)
    assert (found.probe.kind, found.port, found.probe.path) == (kind, port, path)


def test_all_settings_in_any_order() -> None:
    probe = parse_health_check("  http/x   fall=1 timeout=250ms  interval=1m rise=100 ").probe
    assert (probe.interval, probe.timeout, probe.rise, probe.fall) == (60.0, 0.25, 100, 1)


def test_the_way_of_the_probes() -> None:
    assert [parse_health_check(f"tcp{text}").via_vip for text in ("", " via=direct", " via=vip")] == [
        False,
        False,
        True,
    ]


def test_a_passive_check_is_a_word_alone() -> None:
    assert parse_health_check(" passive ").passive
    assert not parse_health_check("tcp").passive
    for text in ("passive interval=1s", "passive via=vip", "passive tcp", "passive:80", "passive/x"):
        with pytest.raises(ValueError, match=r"passive"):
            parse_health_check(text)


def test_the_default_time_out_is_not_longer_than_the_interval() -> None:
    assert parse_health_check("tcp interval=500ms").probe.timeout == 0.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not a type of check; one of "),
        ("icmp", "'icmp' is not a type of check; one of "),
        ("TCP", "'TCP' is not a type of check; one of "),
        ("tcp:", "'' is not a port of 1-65535"),
        ("tcp:0", "'0' is not a port of 1-65535"),
        ("tcp:65536", "'65536' is not a port of 1-65535"),
        ("tcp:http", "'http' is not a port of 1-65535"),
        ("tcp:٣", "'٣' is not a port of 1-65535"),
        ("tcp/x", "a check by tcp has no path"),
        ("http/ä", "the path has a character that is not printable ASCII"),
        ("http/" + "x" * 1024, "the path has a character that is not printable ASCII, or more than 1024"),
        ("http /x", "unknown word '/x'; interval=, timeout=, "),
        ("tcp interval", "unknown word 'interval'; "),
        ("tcp intervall=5s", "unknown word 'intervall'; did you mean interval=?"),
        ("tcp interval=5", "'5' is not a time like 30s, 2m or 500ms"),
        ("tcp interval=0s", "interval=0s is not between 100ms and 1h"),
        ("tcp interval=61m", "interval=61m is not between 100ms and 1h"),
        ("tcp timeout=9ms", "timeout=9ms is less than 10ms"),
        ("tcp timeout=6s", "timeout=6s is longer than interval=5s"),
        ("tcp rise=0", "rise=0 is not a number of 1-100"),
        ("tcp fall=-1", "fall=-1 is not a number of 1-100"),
        ("tcp fall=101", "fall=101 is not a number of 1-100"),
        ("tcp fall=2 fall=3", "fall is given twice"),
        ("tcp via=VIP", "via=VIP is unknown; via=direct and via=vip are possible"),
        ("tcp:80 via=vip", "via=vip goes through the Service"),
    ],
)
def test_what_does_not_parse(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_health_check(text)
    assert str(error.value).startswith(problem)


def service(**annotations: str) -> tuple[Service, list[str]]:
    words = {f"lbagent.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    decoded = decode_object(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "annotations": words},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
        },
        HERE,
    )
    assert isinstance(decoded.obj, Service)
    return decoded.obj, [str(message) for message in decoded.messages]


def test_a_service_without_it_is_not_checked() -> None:
    found, messages = service(health_check_from="local")
    assert (found.health_check, messages) == (None, [])


def test_who_checks() -> None:
    for text, expected in (("all", False), ("local", True), ("Local", True)):
        found, messages = service(health_check="tcp", health_check_from=text)
        assert found.health_check is not None
        assert (found.health_check.local_only, messages) == (expected, [])


def test_a_wrong_word_is_named_with_its_object_and_field_and_the_service_is_served() -> None:
    found, messages = service(health_check="tcp:x", health_check_from="here")
    assert found.health_check is None
    assert found.ports
    field = "Service default/web: metadata.annotations.lbagent.io/health-check"
    assert messages == [
        f"{field}-from: unknown value 'here'; one of all, local is possible; all is used",
        f"{field}: 'x' is not a port of 1-65535; its backends are not checked",
    ]
