"""VIPs by BGP, end to end: a real BIRD on the node, and one as the router whose kernel gets the routes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from tests.announce.bgp.router_lab import NODE4, NODE6, TOR6, RouterLab
from tests.lab.netns import wait_for
from tests.lab.topology import end

pytestmark = [pytest.mark.root, pytest.mark.early]
VIP4, OTHER4, VIP6 = "172.31.78.1", "172.31.78.2", "fd00:77::1"


def started(lab: RouterLab, peer: str = "", **settings: str) -> None:
    lab.write_pools(peer, **settings)
    lab.start_speaker()


def test_both_families_over_one_ipv4_session_and_withdrawn(lab: RouterLab) -> None:
    lab.start_router()
    started(lab, bgp="communities: ['64512:100', '64512:1:2'],")
    assert lab.announce(VIP4, OTHER4, VIP6) == []
    assert lab.wait_routes(VIP4, OTHER4, VIP6) == {VIP4: NODE4, OTHER4: NODE4, VIP6: NODE6}
    table = lab.ask_router("show", "route", "all")
    assert table.count("BGP.community: (64512,100)") == 3
    assert table.count("BGP.large_community: (64512, 1, 2)") == 3
    assert lab.peer() == {"address": "10.1.0.1", "asn": 64513, "state": "established", "bfd": "off", "advertised": 3}
    since = lab.session_since()
    lab.announce(VIP4)
    lab.wait_routes(VIP4)
    lab.announce()
    lab.wait_routes()
    assert lab.peer()["advertised"] == 0
    assert abs(milliseconds(lab.session_since()) - milliseconds(since)) <= 10  # the router computes it at each request


def test_both_families_over_one_ipv6_session(lab: RouterLab) -> None:
    lab.start_router(node=NODE6)
    started(lab, address=TOR6)
    lab.announce(VIP4, VIP6)
    found = lab.wait_routes(VIP4, VIP6)
    assert found[VIP4] == NODE4


def test_a_node_without_ipv4_announces_ipv4_by_its_ipv6_address(lab: RouterLab) -> None:
    lab.node.ip("addr del 10.1.0.2/24 dev e0")
    lab.start_router(node=NODE6, next_hop="extended next hop on;")
    started(lab, address=TOR6)
    lab.announce(VIP4, VIP6)
    assert lab.wait_routes(VIP4, VIP6)[VIP4].startswith("f")  # its global or link-local address


def test_a_node_without_ipv6_says_which_vips_it_does_not_announce(lab: RouterLab) -> None:
    lab.node.ip("addr del fd01::2/64 dev e0")
    lab.start_router()
    started(lab)
    (problem,) = lab.announce(VIP4, VIP6)
    assert "10.1.0.1: IPv6 VIPs are not announced to it" in problem
    lab.wait_routes(VIP4)


def test_a_password_that_is_right_wrong_and_right_again(lab: RouterLab) -> None:
    lab.start_router(options='password "se cret";')
    password = lab.folder / "password"
    password.write_text("se cret\n")
    started(lab, f"passwordFile: {password}")
    lab.announce(VIP4)
    lab.wait_routes(VIP4)
    config = lab.state / "bird" / "bird.conf"
    assert "se cret" in config.read_text()
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
    password.write_text("another\n")
    assert "its password differs" in lab.wait_reason("no answer at TCP port 179")
    assert "another" not in lab.speaker_log()
    password.write_text("se cret")
    lab.wait_routes(VIP4, timeout_s=60)


def test_a_password_file_that_is_missing_leaves_its_peer_out(lab: RouterLab) -> None:
    lab.start_router()
    started(lab, "passwordFile: /nonexistent/secret")
    (problem,) = lab.announce(VIP4)
    assert "BGP peer 10.1.0.1: passwordFile /nonexistent/secret: No such file or directory" in problem
    assert lab.tell("peers") == []


def test_a_wrong_asn_of_the_peer_is_said(lab: RouterLab) -> None:
    lab.start_router(asn=64999)
    started(lab)
    lab.announce(VIP4)
    lab.wait_reason("wrong ASN: it has 64999, the pools file has 64513")
    time.sleep(5)  # the router waits a minute after the error, and closes connections without a reason
    assert "wrong ASN" in lab.wait_reason("wrong ASN")


def test_a_wrong_asn_of_the_node_is_said(lab: RouterLab) -> None:
    lab.start_router(node_asn=64600)
    started(lab)
    lab.announce(VIP4)
    lab.wait_reason("wrong ASN: it expects another `localASN`")


def test_a_peer_without_bgp_refuses(lab: RouterLab) -> None:
    started(lab)
    lab.announce(VIP4)
    lab.wait_reason("it refuses connections to TCP port 179")
    assert any("refuses" in text for text in wait_for(lambda: lab.tell("problems"), "a problem", 60, 0.5))
    lab.start_router()
    lab.wait_routes(VIP4)
    wait_for(lambda: lab.tell("problems") == [], "no problem any more", 30, 0.5)


@pytest.mark.parametrize(
    ("address", "words"),
    [("10.1.0.77", "no host with this address answers"), ("10.9.9.9", "in no network of a device")],
)
def test_a_peer_that_cannot_be_reached_is_said(lab: RouterLab, address: str, words: str) -> None:
    started(lab, address=address)
    lab.announce(VIP4)
    lab.wait_reason(words)


def test_a_killed_bird_is_started_again_and_the_router_keeps_the_routes(lab: RouterLab) -> None:
    lab.start_router(options="graceful restart on;")
    started(lab)
    lab.announce(VIP4, VIP6)
    lab.wait_routes(VIP4, VIP6)
    pid, since = lab.bird_pid(), lab.session_since()
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        assert lab.routes().keys() == {VIP4, VIP6}
        return lab.session_since() not in ("", since)

    wait_for(is_back, "another session", 60)
    assert lab.bird_pid() not in (0, pid)
    deadline = time.monotonic() + 8  # the end of the recovery removes no route either
    while time.monotonic() < deadline:
        assert lab.routes().keys() == {VIP4, VIP6}
        time.sleep(0.1)
    wait_for(lambda: lab.peer()["advertised"] == 2, "both routes told")


def test_a_bird_that_hangs_is_started_again(lab: RouterLab) -> None:
    lab.start_router()
    started(lab)
    lab.announce(VIP4)
    lab.wait_routes(VIP4)
    pid = lab.bird_pid()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: lab.bird_pid() not in (0, pid), "another BIRD", 90)
    wait_for(lambda: lab.peer()["state"] == "established", "the session", 60, 0.5)
    assert "does not answer and is restarted" in lab.speaker_log()


def milliseconds(clock: str) -> int:
    """Return the time of day `03:56:50.657` in milliseconds."""
    hours, minutes, seconds = clock.split(":")
    return round((int(hours) * 3600 + int(minutes) * 60 + float(seconds)) * 1000)


def test_a_killed_agent_is_not_noticed(lab: RouterLab) -> None:
    lab.start_router(options="bfd on; hold time 6;")
    started(lab, "bfd: {interval: 300ms, multiplier: 3}")
    lab.announce(VIP4, VIP6)
    lab.wait_routes(VIP4, VIP6)
    since, pid = lab.session_since(), lab.bird_pid()
    assert os.getsid(pid) == pid  # a signal to the agent's terminal or group does not end it
    for _ in range(2):
        lab.kill_speaker()
        time.sleep(3)
        assert lab.routes().keys() == {VIP4, VIP6}
        lab.start_speaker()
        time.sleep(2)  # it has no routes yet, and changes nothing
        assert lab.routes().keys() == {VIP4, VIP6}
        lab.announce(VIP4, VIP6)
        assert lab.peer()["state"] == "established"
    lab.announce(VIP4, OTHER4, VIP6)
    lab.wait_routes(VIP4, OTHER4, VIP6)
    assert abs(milliseconds(lab.session_since()) - milliseconds(since)) <= 10  # the router computes it at each request
    assert lab.bird_pid() == pid


def test_bfd_takes_routes_away_soon_after_a_link_died_silently(lab: RouterLab) -> None:
    lab.start_router(options="bfd on; error wait time 1, 2;")
    started(lab, "bfd: {interval: 300ms, multiplier: 3}")
    lab.announce(VIP4)
    lab.wait_routes(VIP4)
    wait_for(lambda: lab.peer()["bfd"] == "up", "BFD", 30, 0.2)
    lab.cut()
    lab.wait_routes(timeout_s=20)  # without BFD: after the hold time, 90 s
    lab.wait_reason("BFD")
    lab.mend()
    lab.wait_routes(VIP4, timeout_s=60)


def test_a_configuration_that_bird_refuses_changes_nothing(lab: RouterLab) -> None:
    lab.start_router()
    started(lab)
    lab.announce(VIP4)
    lab.wait_routes(VIP4)
    before = (lab.state / "bird" / "bird.conf").read_text()
    (problem,) = lab.tell("settings", communities=[[70000, 1]])
    assert problem.startswith("bird refuses its configuration, the previous one stays in force: ")
    assert "bird.conf.new:" in problem
    assert (lab.state / "bird" / "bird.conf").read_text() == before
    assert not (lab.state / "bird" / "bird.conf.new").exists()
    assert lab.routes().keys() == {VIP4}
    changed_at = (lab.state / "bird").stat().st_mtime_ns
    time.sleep(5)
    assert lab.speaker_log().count("bgp problem") == 1
    assert (lab.state / "bird").stat().st_mtime_ns == changed_at  # no second write that would be refused again
    assert lab.tell("settings", communities=[[7000, 1]]) == []
    wait_for(lambda: "(7000,1)" in lab.ask_router("show", "route", "all"), "the other community")


def test_only_peers_whose_selector_fits_have_a_session(lab: RouterLab) -> None:
    started(lab, "nodeSelector: {rack: b}")
    assert lab.announce(VIP4) == []
    assert lab.tell("peers") == []
    assert lab.bird_pid() == 0


def test_without_its_section_bird_ends(lab: RouterLab) -> None:
    lab.start_router(options="graceful restart on;")
    started(lab)
    lab.announce(VIP4)
    lab.wait_routes(VIP4)
    (lab.folder / "pools.yaml").write_text("pools: []\n")
    lab.tell("settings")
    assert lab.bird_pid() == 0
    lab.wait_routes()
    lab.write_pools()
    lab.tell("settings")
    lab.wait_routes(VIP4)
    lab.tell("stop", keep=False)
    assert lab.bird_pid() == 0
    lab.wait_routes()


def test_a_folder_that_others_may_enter_is_refused(lab: RouterLab) -> None:
    (lab.state / "bird").mkdir(parents=True)
    (lab.state / "bird").chmod(0o755)
    started(lab)
    (problem,) = lab.announce(VIP4)
    assert "it is not a folder that only root may enter" in problem
    assert lab.bird_pid() == 0


def test_a_port_that_another_process_has_is_said_and_tried_again(lab: RouterLab) -> None:
    lab.start_router()
    code = "import socket, time; s = socket.socket(); s.bind(('', 179)); s.listen(); print('ready', flush=True); time.sleep(600)"
    other = lab.node.popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    started(lab)
    lab.announce(VIP4)
    lab.wait_reason("the TCP port of this node (`port`) is in use")
    end(other)
    lab.wait_routes(VIP4, timeout_s=60)
