"""Which peers are this node's, and the source of passwords; the announcer's interface."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from lbagent.announce.bgp.bgp_routes import BgpRoutes, BgpSection
from lbagent.announce.bgp.bird_process import NoBird, find_program
from lbagent.announce.bgp.peer_sessions import PeerSessions
from lbagent.announce.bgp.speaker import BgpSpeaker
from lbagent.errors import ConfigError
from lbagent.model.address import parse_ip
from lbagent.net.routes import RouteTable
from lbagent.net.snapshot import NodeAddress, NodeNetwork
from lbagent.pools.announcement import BgpPeer, BgpSettings
from lbagent.pools.label_selector import LabelSelector, Requirement
from lbagent.pools.read_pools import parse_pools

NONE = RouteTable(())
NETWORK = NodeNetwork({}, (NodeAddress(parse_ip("10.1.0.2"), 24, 1),), NONE, NONE, NONE, NONE, {})
RACK_B = LabelSelector((Requirement("rack", "In", frozenset({"b"})),))


def test_peers_by_the_labels_of_the_node() -> None:
    one, two = BgpPeer(parse_ip("10.1.0.1"), 1), BgpPeer(parse_ip("10.1.0.9"), 2, node_selector=RACK_B)
    settings = BgpSettings(64512, peers=(one, two))
    chosen = PeerSessions("")
    assert [each.peer for each in chosen.choose(settings, {"rack": "a"}, NETWORK)] == [one]
    assert [each.peer for each in chosen.choose(settings, {"rack": "b"}, NETWORK)] == [one, two]
    assert chosen.choose(settings, {}, NETWORK)[0].local4 == parse_ip("10.1.0.2")


def test_passwords(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    settings = BgpSettings(64512, peers=(BgpPeer(parse_ip("10.1.0.1"), 1, password_file="secret"),))
    chosen = PeerSessions(str(tmp_path))
    assert chosen.choose(settings, {}, NETWORK) == []
    assert chosen.problems == [f"BGP peer 10.1.0.1: passwordFile {file}: No such file or directory; it has no session"]
    for text, password in (("a b\n", "a b"), ("a b \r\n", "a b "), ("x", "x"), ("ä\n", "ä")):
        file.write_bytes(text.encode())
        assert [each.password for each in chosen.choose(settings, {}, NETWORK)] == [password]
        assert chosen.problems == []
    for wrong in ('a"b', "two\nlines\n", "", "x" * 81, "y" * 5000):
        file.write_text(wrong)
        assert [each.password for each in chosen.choose(settings, {}, NETWORK)] == ["ä"]
        (problem,) = chosen.problems
        assert problem.endswith("it keeps the one that was read before")
        assert not wrong or wrong not in problem
    file.unlink()
    assert [each.password for each in chosen.choose(settings, {}, NETWORK)] == ["ä"]


@pytest.mark.parametrize("path", ["a\0b", "."])
def test_a_password_file_that_is_none(tmp_path: Path, path: str) -> None:
    chosen = PeerSessions(str(tmp_path))
    assert (
        chosen.choose(BgpSettings(1, peers=(BgpPeer(parse_ip("10.1.0.1"), 1, password_file=path),)), {}, NETWORK) == []
    )
    assert len(chosen.problems) == 1


def test_without_bird_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(NoBird, match=r"apt-get install bird2"):
        find_program()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0", "is not an address of a router"),
        ("224.0.0.5", "is not an address of a router"),
        ("'::1'", "is not an address of a router"),
        ("255.255.255.255", "is not an address of a router"),
        ("'fe80::1'", "is a link-local address, which needs a device"),
    ],
)
def test_an_address_that_bird_could_not_connect_to(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"f:3: bgp\.peers\[0\]\.address: .*{words}"):
        parse_pools(f"bgp:\n  localASN: 1\n  peers: [{{address: {address}, asn: 1}}]", "f")


def test_two_spellings_of_one_address_are_two_of_one_name() -> None:
    peers = "peers:\n  - {address: 'fd00::1', asn: 1}\n  - {address: 'fd00:0::1', asn: 2}"
    with pytest.raises(ConfigError, match=r"f:5: bgp\.peers\[1\]\.address: 'fd00::1' is given twice"):
        parse_pools(f"bgp:\n  localASN: 1\n  {peers}", "f")


class Speaker:
    """Records its calls."""

    def __init__(self) -> None:
        self.said: list[object] = []

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def use_settings(self, settings: BgpSettings | None, labels: Mapping[str, str]) -> None:
        self.said.append((settings, dict(labels)))

    async def set_routes(self, addresses: Collection[bytes]) -> None:
        self.said.append(sorted(addresses))


async def test_routes_wait_for_the_section_and_each_change_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbagent.announce.bgp.bgp_routes.SETTINGS_POLL_INTERVAL_S", 0.01)
    speaker, section = Speaker(), None
    routes = BgpRoutes(speaker, lambda: section)  # type: ignore[arg-type]
    task = asyncio.create_task(routes.run())
    routes.set_routes([b"1111"])
    await asyncio.sleep(0.1)
    assert speaker.said == []
    settings = BgpSettings(64512)
    section = BgpSection(settings, {"rack": "a"})
    await asyncio.sleep(0.1)
    assert speaker.said == [(settings, {"rack": "a"}), [b"1111"]]
    routes.set_routes([])
    section = BgpSection(None, {})
    await asyncio.sleep(0.1)
    assert speaker.said[2:] == [(None, {}), []]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_bird_that_does_not_start_is_tried_again_after_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = iter((0.3, 0.01, 0.3))
    monkeypatch.setattr("lbagent.announce.bgp.speaker.delays", lambda: pauses)
    monkeypatch.setattr("lbagent.announce.bgp.speaker.STEADY_S", 1000.0)
    starts = []

    def none() -> str:
        starts.append(asyncio.get_running_loop().time())
        raise NoBird("bird is not installed")

    monkeypatch.setattr("lbagent.announce.bgp.bird_process.find_program", none)
    speaker = BgpSpeaker(str(tmp_path), "n", lambda: NETWORK)
    await speaker.use_settings(BgpSettings(64512, peers=(BgpPeer(parse_ip("10.1.0.1"), 1),)), {})
    assert speaker.refusal() == "no peer of the section bgp is for this node"
    for _ in range(3):
        await speaker.set_routes([b"1111"])
        assert speaker.problems() == ["bird is not installed"]
        assert [row.reason for row in await speaker.peers()] == ["bird is not installed"]
    assert len(starts) == 1
    await asyncio.sleep(0.4)
    await speaker.set_routes([])
    assert len(starts) == 2
    assert speaker.refusal() == "bird is not installed"
    await speaker.stop(keep=False)
    assert await speaker.peers() == []
