"""bird.conf: BIRD parses it for any settings; no value from outside becomes syntax."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lbagent.announce.bgp.bird_config import PeerSession, bird_config, check_password, quoted, unreachable_families
from lbagent.errors import ConfigError
from lbagent.model.address import parse_ip
from lbagent.model.family import Family
from lbagent.pools.announcement import Bfd, BgpPeer, BgpSettings

ROUTER_ID = bytes((10, 1, 0, 2))
PEER4, PEER6 = parse_ip("10.1.0.1"), parse_ip("fd01::1")
LOCAL4, LOCAL6 = parse_ip("10.1.0.2"), parse_ip("fd01::2")
ASN = st.integers(1, 0xFFFFFFFF)
COMMUNITY = st.one_of(
    st.tuples(*[st.integers(0, 0xFFFF)] * 2), st.tuples(*[st.integers(0, 0xFFFFFFFF)] * 3)
)  # those that a pools file may have
BFD = st.builds(Bfd, st.floats(0.01, 60), st.integers(1, 255))
HOLD_S = st.one_of(st.just(0.0), st.floats(3, 0xFFFF))
ADDRESS = st.one_of(
    st.integers(0x0B000000, 0x0BFFFFFF).map(lambda n: n.to_bytes(4, "big")),
    st.integers(1, 1 << 64).map(lambda n: (0xFD77 << 112 | n).to_bytes(16, "big")),
)
PORT = st.integers(1, 65535)
PASSWORD = st.text(st.characters(blacklist_characters='"', blacklist_categories=("Cc", "Cs")), max_size=20)


@st.composite
def sessions(draw: st.DrawFn) -> list[PeerSession]:
    found = []
    for address in draw(st.lists(ADDRESS, max_size=4, unique=True)):
        peer = BgpPeer(
            address,
            draw(ASN),
            draw(PORT),
            draw(st.none() | BFD),
            "",
            draw(HOLD_S),
            draw(st.sampled_from((1, 2, 255))),
        )
        local4, local6 = draw(st.sampled_from((LOCAL4, b""))), draw(st.sampled_from((LOCAL6, b"")))
        found.append(PeerSession(peer, local4, local6, draw(PASSWORD)))
    return found


def parses(bird: str, folder: Path, text: str) -> None:
    path = folder / "bird.conf"
    path.write_bytes(text.encode(errors="surrogateescape"))
    done = subprocess.run([bird, "-p", "-c", str(path)], capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, f"{done.stderr}\n{text}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    section=st.builds(BgpSettings, ASN, PORT, st.booleans(), st.lists(COMMUNITY, max_size=4).map(tuple), st.just(())),
    peers=sessions(),
    routes=st.sets(ADDRESS, max_size=20),
)
def test_bird_parses_whatever_a_pools_file_may_say(
    bird: str, tmp_path: Path, section: BgpSettings, peers: list[PeerSession], routes: set[bytes]
) -> None:
    text = bird_config(section, router_id=ROUTER_ID, log_file=str(tmp_path / "x.log"), sessions=peers, routes=routes)
    parses(bird, tmp_path, text)
    assert text.count(" blackhole;") == len(routes)
    assert text.count("protocol bgp ") == len(peers)
    assert text.count("import none") == text.count("export filter announced")
    assert text.count('  if proto != "vips4" && proto != "vips6" then reject;') == 1
    assert "protocol kernel" not in text
    assert "protocol pipe" not in text


SECTION = BgpSettings(64512)


def one_session(password: str = "", peer: BgpPeer | None = None, **local: bytes) -> str:
    found = PeerSession(
        peer or BgpPeer(PEER4, 64513), local.get("local4", LOCAL4), local.get("local6", LOCAL6), password
    )
    return bird_config(SECTION, router_id=ROUTER_ID, log_file="/l", sessions=[found], routes=[])


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_a_password_is_text_or_refused(password: str) -> None:
    """The rest of the configuration does not depend on the password."""
    try:
        text = one_session(check_password(password, "p"))
    except ConfigError:
        return
    before, _, after = one_session("x").partition('"x"')
    assert text == f'{before}"{password}"{after}'


@pytest.mark.parametrize(
    "password",
    [
        'a"; } protocol kernel { ipv4 { export all; }; } #',
        "a\nimport all;",
        'x"',
        "tab\there",
        "nul\0",
        "del\x7f",
        "",
        "x" * 81,
    ],
)
def test_a_password_that_bird_cannot_have_is_refused(password: str) -> None:
    with pytest.raises(ConfigError, match="passwordFile F has ") as refusal:
        check_password(password, "passwordFile F")
    assert not password or password not in str(refusal.value)


@pytest.mark.parametrize("password", ["};#/*", "\\", "'", "$(id)", "ä€", "x" * 80, "\udcff"])
def test_a_password_with_other_signs_is_a_password(bird: str, tmp_path: Path, password: str) -> None:
    parses(bird, tmp_path, one_session(check_password(password, "p")))


def test_a_log_path_with_a_quotation_mark_is_refused() -> None:
    with pytest.raises(ConfigError, match="the log file has a quotation mark"):
        bird_config(SECTION, router_id=ROUTER_ID, log_file='/a"b', sessions=[], routes=[])
    with pytest.raises(ConfigError):
        quoted("a\nb", "it")


@pytest.mark.parametrize("number", ["1; }", "1", 1.5, None])
def test_what_is_no_number_is_never_syntax(number: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        one_session(peer=BgpPeer(PEER4, number))  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError)):
        bird_config(
            BgpSettings(64512, communities=((number, 1),)),  # type: ignore[arg-type]
            router_id=ROUTER_ID, log_file="/l", sessions=[], routes=[],
        )  # fmt: skip


def test_an_address_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError):
        bird_config(SECTION, router_id=LOCAL6, log_file="/l", sessions=[], routes=[])
    for wrong in (b"", b"12345", b"0.0.0.0/0"):
        with pytest.raises(ValueError):
            bird_config(SECTION, router_id=ROUTER_ID, log_file="/l", sessions=[], routes=[wrong])


def test_the_name_of_a_session_follows_from_its_address_alone() -> None:
    """BIRD keeps a session over a reload by its name: other peers in the file may not change it."""
    assert (
        PeerSession(BgpPeer(PEER4, 1)).name
        == PeerSession(BgpPeer(PEER4, 2), LOCAL4, LOCAL6, "p").name
        == "peer_0a010001"
    )
    assert PeerSession(BgpPeer(PEER6, 1)).name == f"peer_{PEER6.hex()}"


def test_the_order_of_routes_does_not_count() -> None:
    routes = [parse_ip(text) for text in ("172.31.0.2", "172.31.0.1", "fd77::1")]
    texts = {
        bird_config(SECTION, router_id=ROUTER_ID, log_file="/l", sessions=[], routes=each)
        for each in (routes, routes[::-1], set(routes))
    }
    assert len(texts) == 1


def test_next_hops_of_the_other_family() -> None:
    assert "ipv6 { import none; export filter announced; next hop address fd01::2; };" in one_session()
    assert "ipv6" not in one_session(local6=b"").partition("protocol bgp")[2]
    peer6 = BgpPeer(PEER6, 64513)
    assert "ipv4 { import none; export filter announced; next hop address 10.1.0.2; };" in one_session(peer=peer6)
    assert "ipv4 { import none; export filter announced; extended next hop on; };" in one_session(
        peer=peer6, local4=b""
    )
    assert unreachable_families(PeerSession(BgpPeer(PEER4, 1), LOCAL4)) == {Family.IPV6}
    assert unreachable_families(PeerSession(peer6, b"", LOCAL6)) == set()


def test_bfd_that_crosses_routers_needs_the_local_address() -> None:
    far = BgpPeer(parse_ip("10.9.0.1"), 64513, bfd=Bfd(0.3, 3), multihop=3)
    text = one_session(peer=far)
    assert "local 10.1.0.2 port 179 as 64512;" in text
    assert "multihop 3;" in text
    assert "bfd { interval 300000 us; multiplier 3; };" in text
    assert "bfd" not in one_session(peer=far, local4=b"")
    assert "  direct;" in one_session()
    assert "  local port 179 as 64512;" in one_session()  # an address that changes does not end a session
