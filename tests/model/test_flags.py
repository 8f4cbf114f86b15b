"""Service flags: bits, fields, texts. Expected values: cilium's flag table and text order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr
from lbagent.model.flags import ServiceFlags, SvcFlagParam
from lbagent.model.kinds import SVCNatPolicy, SVCTrafficPolicy, SVCType

BITS = {
    "EXTERNAL_IPS": 0x0001,
    "NODE_PORT": 0x0002,
    "EXT_LOCAL_SCOPE": 0x0004,
    "HOST_PORT": 0x0008,
    "SESSION_AFFINITY": 0x0010,
    "LOAD_BALANCER": 0x0020,
    "ROUTABLE": 0x0040,
    "SOURCE_RANGE": 0x0080,
    "LOCAL_REDIRECT": 0x0100,
    "NAT46X64": 0x0200,
    "L7_LOAD_BALANCER": 0x0400,
    "LOOPBACK": 0x0800,
    "INT_LOCAL_SCOPE": 0x1000,
    "TWO_SCOPES": 0x2000,
    "SOURCE_RANGE_DENY": 0x4000,
    "FORWARDING_DSR": 0x8000,
}
FE4, FE6 = L3n4Addr.parse("10.0.0.1:80"), L3n4Addr.parse("[fd00::1]:80")


def test_bit_values() -> None:
    """All 16 bits."""
    assert {name: getattr(ServiceFlags, name) for name in BITS} == BITS


@pytest.mark.parametrize(
    ("param", "value", "text"),
    [
        (SvcFlagParam(), 0x0000, "ClusterIP, non-routable"),
        (SvcFlagParam(svc_type=SVCType.NONE, is_routable=True), 0x0040, "ClusterIP"),
        (SvcFlagParam(svc_type=SVCType.NODE_PORT), 0x0002, "NodePort, non-routable"),
        (SvcFlagParam(svc_type=SVCType.EXTERNAL_IPS, is_routable=True), 0x0041, "ExternalIPs"),
        (SvcFlagParam(svc_type=SVCType.HOST_PORT, loopback_hostport=True), 0x0808, "HostPort, non-routable, loopback"),
        (SvcFlagParam(svc_type=SVCType.NODE_PORT, loopback_hostport=True, is_routable=True), 0x0042, "NodePort"),
        (SvcFlagParam(svc_type=SVCType.HOST_PORT, is_routable=True), 0x0048, "HostPort"),
        (
            SvcFlagParam(is_routable=True, source_range_deny=True),
            0x0040,
            "ClusterIP",
        ),  # without ranges it would say quarantined
        (SvcFlagParam(svc_type=SVCType.LOCAL_REDIRECT, is_routable=True), 0x0140, "LocalRedirect"),
        (SvcFlagParam(is_routable=True, svc_nat_policy=SVCNatPolicy.NAT46), 0x0240, "ClusterIP, 46x64"),
        (SvcFlagParam(is_routable=True, svc_nat_policy=SVCNatPolicy.NAT64), 0x0240, "ClusterIP, 46x64"),
        (SvcFlagParam(is_routable=True, session_affinity=True), 0x0050, "ClusterIP, sessionAffinity"),
        (SvcFlagParam(is_routable=True, l7_load_balancer=True), 0x0440, "ClusterIP, l7-load-balancer"),
        (
            SvcFlagParam(svc_type=SVCType.LOAD_BALANCER, is_routable=True, check_source_range=True),
            0x00E0,
            "LoadBalancer, check source-range",
        ),
        (
            SvcFlagParam(SVCType.LOAD_BALANCER, is_routable=True, check_source_range=True, source_range_deny=True),
            0x40E0,
            "LoadBalancer, check source-range, deny",
        ),
        (
            SvcFlagParam(SVCType.LOAD_BALANCER, is_routable=True, svc_ext_local=True, forwarding_dsr=True),
            0xA064,
            "LoadBalancer, Local, two-scopes, dsr",
        ),
        (
            SvcFlagParam(SVCType.LOAD_BALANCER, is_routable=True, svc_ext_local=True, svc_int_local=True),
            0x1064,
            "LoadBalancer, Local, InternalLocal",
        ),
        (
            SvcFlagParam(SVCType.NODE_PORT, svc_ext_local=True, session_affinity=True, two_scopes=False),
            0x0016,
            "NodePort, Local, sessionAffinity, non-routable",
        ),
        (
            SvcFlagParam(svc_ext_local=True),
            0x0004,
            "ClusterIP, Local, non-routable",
        ),  # a ClusterIP never has two scopes
        (SvcFlagParam(SVCType.NODE_PORT, two_scopes=True), 0x2002, "NodePort, two-scopes, non-routable"),
    ],
)
def test_param_to_bits_to_text(param: SvcFlagParam, value: int, text: str) -> None:
    """Fields make bits, bits make text, text makes bits again."""
    flags = ServiceFlags.from_param(param)
    assert int(flags) == value
    assert str(flags) == f"{flags}" == text
    assert flags.dump_text == text.replace(", ", "+")
    assert ServiceFlags.parse(text) == ServiceFlags.parse(flags.dump_text) == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0x0000, SVCType.CLUSTER_IP),
        (0x012B, SVCType.EXTERNAL_IPS),
        (0x012A, SVCType.NODE_PORT),
        (0x0128, SVCType.LOAD_BALANCER),
        (0x0108, SVCType.HOST_PORT),
        (0x0100, SVCType.LOCAL_REDIRECT),
    ],
)
def test_decoding_precedence(value: int, kind: SVCType) -> None:
    """ExternalIPs > NodePort > LoadBalancer > HostPort > LocalRedirect > ClusterIP."""
    assert ServiceFlags(value).svc_type() is kind


def test_policies() -> None:
    """The properties read bits 2, 9, 10 and 12; the frontend's family distinguishes Nat46 and Nat64."""
    assert ServiceFlags(0x0004).ext_traffic_policy() is SVCTrafficPolicy.LOCAL
    assert ServiceFlags(0x0004).int_traffic_policy() is SVCTrafficPolicy.CLUSTER
    assert ServiceFlags(0x1000).int_traffic_policy() is SVCTrafficPolicy.LOCAL
    assert ServiceFlags(0x1000).ext_traffic_policy() is SVCTrafficPolicy.CLUSTER
    assert ServiceFlags(0x0200).nat_policy(FE4) is SVCNatPolicy.NAT46
    assert ServiceFlags(0x0200).nat_policy(FE6) is SVCNatPolicy.NAT64
    assert ServiceFlags(0).nat_policy(FE4) is SVCNatPolicy.NONE
    assert ServiceFlags(0x0400).is_l7lb()
    assert not ServiceFlags(0xFBFF).is_l7lb()


params = st.builds(
    SvcFlagParam,
    svc_type=st.sampled_from([kind for kind in SVCType if kind is not SVCType.NONE]),
    svc_nat_policy=st.sampled_from(SVCNatPolicy),
    two_scopes=st.sampled_from([None, True, False]),
)


@given(st.integers(0, 0xFFFF))
def test_text_says_all_but_hidden_types(value: int) -> None:
    """Text -> bits -> text is stable; only lower type bits under a higher one, and nothing else, are lost."""
    flags = ServiceFlags(value)
    again = ServiceFlags.parse(str(flags))
    assert str(again) == str(flags)
    types = 0x0001 | 0x0002 | 0x0008 | 0x0020 | 0x0100
    assert again & ~types == flags & ~types
    assert again.svc_type() is flags.svc_type()


@given(params)
def test_param_round_trip(param: SvcFlagParam) -> None:
    """The type survives the bits, and the bits survive the text."""
    flags = ServiceFlags.from_param(param)
    assert flags.svc_type() is param.svc_type
    assert ServiceFlags.parse(str(flags)) == flags


def test_refused() -> None:
    """More than 16 bits and unknown words."""
    for value in (-1, 0x10000):
        with pytest.raises(ValueError, match="16 bits"):
            ServiceFlags(value)
    with pytest.raises(ValueError, match="'Klaster'"):
        ServiceFlags.parse("Klaster, Local")


def test_is_an_int() -> None:
    """Two bytes of a map row: low byte first."""
    flags = ServiceFlags(0xA064)
    assert flags.to_bytes(2, "little") == b"\x64\xa0"
    assert flags == 0xA064
    assert "dsr" in repr(flags)


def test_the_words_of_a_param_may_be_plain_texts() -> None:
    plain = SvcFlagParam("ClusterIP", "NONE", svc_ext_local=True)  # type: ignore[arg-type]
    assert str(ServiceFlags.from_param(plain)) == "ClusterIP, Local, non-routable"
    loopback = SvcFlagParam("HostPort", loopback_hostport=True)  # type: ignore[arg-type]
    assert str(ServiceFlags.from_param(loopback)) == "HostPort, non-routable, loopback"


def test_one_bit_means_deny_with_source_ranges_and_quarantined_without() -> None:
    bit, ranges = ServiceFlags.SOURCE_RANGE_DENY, ServiceFlags.SOURCE_RANGE
    assert ServiceFlags(bit | ServiceFlags.ROUTABLE).words() == ["ClusterIP", "quarantined"]
    assert ServiceFlags(bit | ranges | ServiceFlags.ROUTABLE).words() == ["ClusterIP", "check source-range", "deny"]
    assert ServiceFlags(0x4E40 | ranges).words() == [
        "ClusterIP", "check source-range", "deny", "46x64", "l7-load-balancer", "loopback",
    ]  # fmt: skip
