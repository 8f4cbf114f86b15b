"""Texts of UPnP: searches, descriptions, actions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.cloud.edge.find_gateway import ordered
from lbagent.cloud.edge.protocols import soap_action, ssdp
from lbagent.cloud.edge.protocols.bounded_xml import parse_xml
from lbagent.cloud.edge.protocols.default_route import read_default
from lbagent.cloud.edge.protocols.device_description import read_description
from lbagent.cloud.edge.protocols.soap_action import UpnpError
from lbagent.cloud.edge.protocols.ssdp import SsdpAnswer
from lbagent.http.http_client import HttpAnswer, parse_url

URL = parse_url("http://192.0.2.1:5000/desc.xml")
IP1 = "urn:schemas-upnp-org:service:WANIPConnection:1"
TEXTS = st.text(
    st.characters(blacklist_categories=("Cs", "Cc", "Cn"), blacklist_characters="\ufffe\uffff"), max_size=40
)


def description(*services: tuple[str, str], base: str = "") -> bytes:
    inside = "".join(
        f"<service><serviceType>{kind}</serviceType><controlURL>{control}</controlURL></service>"
        for kind, control in services
    )
    root = f"<URLBase>{base}</URLBase>" if base else ""
    device = f"<device><friendlyName>My\x7f router</friendlyName><deviceList><device><serviceList>{inside}</serviceList></device></deviceList></device>"
    return f'<root xmlns="urn:schemas-upnp-org:device-1-0">{root}{device}</root>'.encode()


def test_connections_in_the_order_in_which_they_are_asked() -> None:
    ppp, ip2 = IP1.replace("IP", "PPP"), IP1.replace(":1", ":2")
    found = read_description(description((ppp, "/ppp"), ("urn:x", "/x"), (IP1, "ctl/ip"), (ip2, "/ctl/ip2")), URL)
    assert found.name == "My router"
    assert [(each.service_type, str(each.control)) for each in found.connections] == [
        (ip2, "http://192.0.2.1:5000/ctl/ip2"),
        (IP1, "http://192.0.2.1:5000/ctl/ip"),
        (ppp, "http://192.0.2.1:5000/ppp"),
    ]
    (other,) = read_description(description((IP1, "ip"), base="http://192.0.2.1:80/a/"), URL).connections
    assert str(other.control) == "http://192.0.2.1/a/ip"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (description(("urn:x", "/x")), "names no WANIPConnection"),
        (description((IP1, "http://198.51.100.7/ctl")), "is of another host"),
        (description((IP1, "/ctl"), base="http://198.51.100.7/"), "is of another host"),
        (description((IP1, "ftp://192.0.2.1/")), "no URL"),
        (b"<root>", "not valid XML"),
    ],
)
def test_a_description_that_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_description(data, URL)


@given(st.dictionaries(st.sampled_from(["NewA", "NewB", "NewC"]), TEXTS))
def test_an_action_is_read_as_it_was_written(arguments: dict[str, str]) -> None:
    headers, body = soap_action.encode_action(IP1, "Do", arguments)
    assert headers["SOAPAction"] == f'"{IP1}#Do"'
    found = next(parse_xml(body).every("Do"))
    assert {each.name: each.text for each in found.children} == {key: text.strip() for key, text in arguments.items()}
    answer = HttpAnswer(200, body.replace(b"u:Do", b"u:DoResponse"))
    assert soap_action.decode_answer("Do", answer) == {each.name: each.text for each in found.children}


FAULT = b"<e><b><Fault><detail><UPnPError><errorCode>%s</errorCode><errorDescription>No\x7f way</errorDescription></UPnPError></detail></Fault></b></e>"


def test_an_error_of_an_action() -> None:
    with pytest.raises(UpnpError, match=r"error 718 \(No way\)") as found:
        soap_action.decode_answer("Do", HttpAnswer(500, FAULT % b"718"))
    assert found.value.code == 718
    for body in (FAULT % b"x", FAULT % "١".encode(), b"<e/>", b"", b"<DoResponse>"):
        with pytest.raises(ValueError):
            soap_action.decode_answer("Do", HttpAnswer(500, body))
    with pytest.raises(ValueError, match="status 404"):
        soap_action.decode_answer("Do", HttpAnswer(404, b"<DoResponse/>"))


def answer(
    location: str = "http://192.0.2.1:5000/d", target: str = ssdp.TARGETS[0], first: str = "HTTP/1.1 200 OK"
) -> bytes:
    return f"{first}\r\nCACHE-CONTROL: max-age=120\r\nsT: {target}\r\nLocation: {location}\r\n\r\n".encode()


def test_answers_to_a_search() -> None:
    found = ssdp.decode_answer(answer(), "192.0.2.1")
    assert found == SsdpAnswer("192.0.2.1", parse_url("http://192.0.2.1:5000/d"))
    refused = [answer("http://198.51.100.7/d"), answer("file:///etc"), answer(""), answer(target="ssdp:all")]
    refused += [answer(first="NOTIFY * HTTP/1.1"), b"", answer() + b"x" * 5000]
    assert [ssdp.decode_answer(data, "192.0.2.1") for data in refused] == [None] * len(refused)
    lines = ssdp.encode_search("urn:x").decode().split("\r\n")
    assert lines[0] == "M-SEARCH * HTTP/1.1"
    assert {"HOST: 239.255.255.250:1900", 'MAN: "ssdp:discover"', "ST: urn:x"} < set(lines)


@given(st.binary(max_size=300))
def test_any_datagram_is_an_answer_or_none(data: bytes) -> None:
    assert ssdp.decode_answer(b"HTTP/1.1 200 OK\r\n" + data, "192.0.2.1") is None


def test_of_several_gateways_that_of_the_default_route_is_first() -> None:
    answers = [SsdpAnswer(host, parse_url(f"http://{host}/d")) for host in ("192.0.2.30", "192.0.2.4", "192.0.2.200")]
    for given_order in (answers, answers[::-1]):
        assert [url.host for url in ordered(given_order, "192.0.2.200")] == ["192.0.2.200", "192.0.2.4", "192.0.2.30"]
        assert [url.host for url in ordered(given_order * 2, "")] == ["192.0.2.4", "192.0.2.30", "192.0.2.200"]


def test_the_default_route() -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    lines = "e0 00000000 010200C0 0003 0 0 100 00000000 0 0 0\ne1 00000000 FE0200C0 0003 0 0 50 00000000 0 0 0\n"
    assert read_default(head + lines) == "192.0.2.254"
    assert read_default(head + "e0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n") == ""
    assert read_default(head + "p0 00000000 00000000 0001 0 0 0 00000000 0 0 0\n") == ""  # a tunnel: no router
