"""Native mode on a host: real HTTPS servers, real processes in a cgroup and network namespaces of the test's own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from lbagent.api.client import AgentClient
from lbagent.errors import LbError, NotFound
from tests.lab import cgroup, netns
from tests.lab.api_hosts import BIND, NAMES, PORT, ApiHosts, NativeAgent, ask, ipv4, ipv6, reached, tls
from tests.lab.manifests import Endpoint, Manifest
from tests.lab.topology import ROOT, end
from tests.lab.traffic import Answer, Load

pytestmark = [pytest.mark.root, pytest.mark.bpf]
wait_for = partial(netns.wait_for, timeout_s=120)  # a busy machine


@pytest.fixture(scope="module")
def hosts() -> Iterator[ApiHosts]:
    lab = ApiHosts()
    try:
        lab.serve()
        lab.pool()
        lab.agent.start()
        yield lab
    finally:
        lab.close()


@pytest.fixture
def lab(hosts: ApiHosts) -> ApiHosts:
    """All servers up and in the pool again, after any earlier test; one bind, 127.0.0.1:7443."""
    for name in NAMES:
        hosts.behave(name, "200")
    for path in hosts.pools.iterdir():
        if path.name != "lb.yaml":
            path.unlink()
    hosts.pool()
    wait_for(lambda: [row["name"] for row in hosts.rows()] == ["lb"], "one pool")
    hosts.wait_up("abc")
    return hosts


def answered(address: str, port: int) -> Answer:
    """Send one request, for a Load."""
    return Answer(ask(address, port), client="")


LOAD = partial(answered, *BIND)


class Watch:
    """A request with an endless answer: a kubelet's watch."""

    def __init__(self, address: str = BIND[0], port: int = BIND[1]) -> None:
        self.sock = tls(address, port)
        self.sock.sendall(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        while not data.partition(b"\r\n\r\n")[2]:
            data += self.sock.recv(4096)
        self.server = data.partition(b"\r\n\r\n")[2].decode()[0]

    def ended(self) -> bool:
        """Whether it has ended; reads the received data."""
        self.sock.setblocking(False)
        try:
            while True:
                if not self.sock.recv(65536):
                    return True
        except (ssl.SSLWantReadError, BlockingIOError):
            return False
        except OSError:
            return True


def watches(number: int) -> list[Watch]:
    """Open watches until each server has two."""
    found = [Watch() for _ in range(number)]
    while min(Counter(each.server for each in found).get(name, 0) for name in NAMES) < 2:
        found.append(Watch())
    return found


def ended(found: list[Watch]) -> str:
    """Return the servers of the watches that have ended: "aab"."""
    return "".join(sorted(each.server for each in found if each.ended()))


def counted(lab: ApiHosts, what: str, result: str) -> int:
    """Return the sum of a counter over the servers of the instance `late`."""
    lines = [line for line in metrics(lab).splitlines() if line.startswith(f"lbagent_apilb_{what}_total{{")]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if 'name="late"' in line and result in line)


# --- addresses of a bind ---


def test_processes_of_the_host_reach_every_server_and_see_what_they_asked_for(lab: ApiHosts) -> None:
    lab.pool("six", [f"[{ipv6(name)}]:{PORT}" for name in NAMES], bind="[::1]:7443")
    wait_for(lambda: len(lab.rows()) == 2, "a second pool")
    with lab.inside():
        for address in ("127.0.0.1", "::ffff:127.0.0.1", "::1"):
            wait_for(partial(ask, address, 7443), "an answer")
            assert set(reached(address, 7443)) == {"a", "b", "c"}
            with tls(address, 7443) as sock:
                assert sock.getpeername()[:2] == (address, 7443)
        with pytest.raises(ConnectionRefusedError):
            ask("127.0.0.2", 7443)
        with pytest.raises(ConnectionRefusedError):
            ask("127.0.0.1", 7444)


def test_they_are_services_of_the_namespace_apilb(lab: ApiHosts) -> None:
    (row,) = lab.agent.json("svc", "list")
    assert (row["namespace"], row["name"], row["frontend"]) == ("apilb", "lb", "127.0.0.1:7443/TCP")
    assert sorted(each["address"] for each in row["backends"]) == [f"{ipv4(name)}:{PORT}/TCP" for name in NAMES]
    assert [each["services"] for each in lab.agent.json("backend", "list")] == [["apilb/lb"]] * 3
    status = lab.agent.json("status")
    assert (status["conditions"], status["problems"]) == ([], [])  # no device is named, and none is missing


def test_a_pod_s_own_loopback_is_its_own(lab: ApiHosts) -> None:
    with cgroup.joined(lab.cgroup), lab.pod.entered():
        with pytest.raises(ConnectionRefusedError):
            ask(*BIND)
        with socket.create_server(BIND), socket.create_connection(BIND) as sock:
            assert sock.getpeername() == BIND


@contextlib.contextmanager
def listening(lab: ApiHosts, address: str, port: int, **more: bool) -> Iterator[socket.socket]:
    with lab.host.entered():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.create_server((address, port), family=family, **more)
    with sock:
        yield sock


@pytest.mark.parametrize(("address", "more"), [("127.0.0.1", {}), ("0.0.0.0", {}), ("::", {"dualstack_ipv6": True})])
def test_a_process_that_listens_keeps_its_bind(lab: ApiHosts, address: str, more: dict[str, bool]) -> None:
    with listening(lab, address, 7443, **more) as listener:
        wait_for(lambda: lab.agent.json("svc", "list") == [], "the bind given up")
        wait_for(lambda: lab.rows()[0]["status"].startswith("a process listens on "), "and shown as taken")
        (condition,) = wait_for(
            lambda: [each for each in lab.agent.json("status")["conditions"] if each["name"] == "objects-refused"],
            "said",
        )
        assert "a process of this host listens on" in condition["text"]
        assert "nothing is diverted" in condition["text"]
        with lab.inside(), socket.create_connection(BIND) as sock:
            accepted, _ = listener.accept()
            with accepted:
                sock.sendall(b"x")
                assert accepted.recv(1) == b"x"
    wait_for(lambda: lab.agent.json("svc", "list"), "the bind served again")
    with lab.inside():
        assert ask(*BIND) in NAMES


def test_listeners_elsewhere_are_no_obstacle(lab: ApiHosts) -> None:
    with (
        listening(lab, "127.0.0.2", 7443),
        listening(lab, "::", 7443, dualstack_ipv6=False),
        listening(lab, "127.0.0.1", 7444),
    ):
        time.sleep(2.5)  # two polls
        assert lab.rows()[0]["status"] == "running"
        with lab.inside():
            assert ask(*BIND) in NAMES


# --- health ---


def test_a_server_that_is_down_gets_nothing_new_and_loses_what_it_has(lab: ApiHosts) -> None:
    with lab.inside():
        found = watches(9)
        lab.behave("a", "500")
        lab.wait_up("bc")
        assert set(reached()) == {"b", "c"}
    mine = "".join(each.server for each in found if each.server == "a")
    wait_for(lambda: ended(found) == mine, "the watches of that server ended")
    time.sleep(1)
    assert ended(found) == mine
    states = {each["address"]: each["state"] for each in lab.agent.json("backend", "list")}
    assert states[f"{ipv4('a')}:{PORT}/TCP"] == "quarantined"
    lab.behave("a", "200")
    lab.wait_up("abc")
    with lab.inside():
        assert set(reached()) == {"a", "b", "c"}


def test_connections_that_do_not_come_by_the_bind_are_left_alone(lab: ApiHosts) -> None:
    with lab.inside():
        direct = Watch(ipv4("a"), PORT)
        found = watches(9)
    wait_for(lambda: sum(each["connections"] for each in lab.rows()[0]["servers"]) == len(found), "just these counted")
    lab.behave("a", "500")
    mine = "".join(each.server for each in found if each.server == "a")
    wait_for(lambda: ended(found) == mine, "the watches of that server ended")
    assert not direct.ended()


def test_with_keep_connections_stay(lab: ApiHosts) -> None:
    lab.pool(onMarkedDown="keep")
    wait_for(lambda: lab.rows()[0]["on_marked_down"] == "keep", "the edit")
    with lab.inside():
        found = watches(6)
    lab.behave("a", "500")
    lab.wait_up("bc")
    time.sleep(2)
    assert ended(found) == ""


def test_three_slow_servers_are_not_all_reset_and_none_left_refuses_at_once(lab: ApiHosts) -> None:
    lab.pool(check={"timeout": "1500ms"})
    with lab.inside():
        found = watches(9)
    for name in NAMES:
        lab.behave(name, "slow")
    lab.wait_up("")
    with lab.inside():
        began = time.monotonic()
        with pytest.raises(ConnectionRefusedError):
            ask(*BIND)
        assert time.monotonic() - began < 5
    time.sleep(2)
    left = {each.server for each in found if not each.ended()}
    assert left  # those of the last server that went down, at least
    lab.behave("b", "200")
    lab.wait_up("b")
    with lab.inside():
        assert set(reached()) == {"b"}
    wait_for(lambda: {each.server for each in found if not each.ended()} <= {"b"}, "the others' watches ended")


def test_a_black_hole_is_found_and_its_watches_go_on_elsewhere(lab: ApiHosts) -> None:
    with lab.inside():
        found = watches(9)
    lab.servers.ip("route add blackhole default", f"addr del {ipv4('c')}/24 dev eth0")
    try:
        lab.wait_up("ab")
        mine = "".join(each.server for each in found if each.server == "c")
        wait_for(lambda: ended(found) == mine, "the watches of that server ended")
    finally:
        lab.servers.ip(f"addr add {ipv4('c')}/24 dev eth0", "route del blackhole default")
    lab.wait_up("abc")


def test_a_machine_that_was_suspended_takes_no_server_for_down(lab: ApiHosts) -> None:
    for name in NAMES:
        lab.behave(name, "slow")  # a check is under way all the time
    lab.pool("late", bind="127.0.0.1:7444", check={"timeout": "6s", "fall": 1, "rise": 1})
    wait_for(lambda: counted(lab, "checks", 'ok"') >= 2 * len(NAMES), "slow answers")
    before = counted(lab, "checks", 'timeout"'), counted(lab, "transitions", "")
    try:
        os.kill(lab.agent.pid, signal.SIGSTOP)
        lab.signal_servers(signal.SIGSTOP)
        time.sleep(7)
    finally:
        os.kill(lab.agent.pid, signal.SIGCONT)
        done = counted(lab, "checks", 'ok"')
        time.sleep(0.5)
        lab.signal_servers(signal.SIGCONT)
    wait_for(lambda: counted(lab, "checks", 'ok"') >= done + len(NAMES), "answers that were late")
    assert (counted(lab, "checks", 'timeout"'), counted(lab, "transitions", "")) == before


def test_an_operator_takes_a_server_out(lab: ApiHosts) -> None:
    address = f"{ipv4('b')}:{PORT}/TCP"
    lab.agent.cli("backend", "set-state", "maintenance", address)
    try:
        with lab.inside():
            assert set(reached()) == {"a", "c"}
        lab.behave("b", "500")
        lab.wait_up("ac")
        (row,) = [each for each in lab.agent.json("backend", "list") if each["address"] == address]
        assert row["state"] == "maintenance"
        done = lab.agent.cli("backend", "set-state", "active", address)
        assert done.stderr == (
            f"{address} stays active whatever the health checks of apilb/lb find; "
            f"`lbagent backend clear-state {address}` lets them set its state again\n"
        )
    finally:
        lab.agent.cli("backend", "clear-state", address)
    (row,) = [each for each in lab.agent.json("backend", "list") if each["address"] == address]
    assert row["state"] == "quarantined"


def test_the_metrics_and_backend_get_tell_of_each_server(lab: ApiHosts) -> None:
    lab.behave("a", "401")
    lab.wait_up("bc")
    for name, is_up in (("a", False), ("b", True)):
        row = lab.agent.json("backend", "get", f"{ipv4(name)}:{PORT}")
        (check,) = row["checks"]
        assert (check["pool"], check["server"], check["up"]) == ("pool/lb", f"{ipv4(name)}:{PORT}", is_up)
        assert check["results"]["ok" if is_up else "status"] > 0
        assert check["since"] > 0
        assert ("401" in check["last"]) == (not is_up)
        assert (row["state"], row["pod"]) == ("active" if is_up else "quarantined", "")
    text = metrics(lab)
    label = f'pool="pool",name="lb",server="{ipv4("a")}:{PORT}"'
    assert f"lbagent_apilb_server_up{{{label}}} 0" in text
    assert f'lbagent_apilb_server_up{{pool="pool",name="lb",server="{ipv4("b")}:{PORT}"}} 1' in text
    assert f'lbagent_apilb_checks_total{{{label},result="ok"}}' in text
    assert f'lbagent_apilb_checks_total{{{label},result="status"}}' in text
    assert f"lbagent_apilb_transitions_total{{{label}}}" in text
    assert "lbagent_apilb_check_seconds_count" in text


def metrics(lab: ApiHosts) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(lab.socket))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = b""
        while piece := sock.recv(65536):
            data += piece
    return data.decode()


# --- edits, restarts ---


def test_no_connection_fails_while_pools_are_edited(lab: ApiHosts) -> None:
    """Servers and other pools are added and removed, with an invalid file in between: the others serve without a pause."""
    with lab.inside(), Load(lab.host, [LOAD], workers=3) as load:
        for names in ("ab", "b", "bc", "abc", "ca", "abc"):
            lab.pool(servers=[f"{ipv4(name)}:{PORT}" for name in names])
            lab.wait_up(names if names != "ca" else "ac")
            load.wait_more(60)
        lab.pool("other", bind="127.0.0.1:7444")
        wait_for(lambda: len(lab.rows()) == 2, "another pool")
        (lab.pools / "lb.yaml").write_text("{ bad")
        wait_for(lambda: "lb.yaml" in str(lab.agent.json("status")["sources"]), "the bad file named")
        load.wait_more(60)
        lab.pool(check={"path": "/readyz"})
        (lab.pools / "other.yaml").unlink()
        wait_for(lambda: len(lab.rows()) == 1, "the pool gone")
        load.wait_more(60)
    assert load.tally.failures == []
    assert set(load.tally.answered) == {"a", "b", "c"}


def test_nothing_goes_to_a_server_that_was_removed(lab: ApiHosts) -> None:
    with lab.inside():
        stays = [each for each in watches(6) if each.server == "a"]
        lab.pool(servers=[f"{ipv4(name)}:{PORT}" for name in "bc"])
        wait_for(lambda: len(lab.rows()[0]["servers"]) == 2, "the edit")
        lab.agent.api.status()
        wait_for(lambda: len(lab.agent.json("svc", "list")[0]["backends"]) == 2, "the edit in the maps")
        assert set(reached()) == {"b", "c"}
    assert not any(each.ended() for each in stays)  # it is not down: it keeps its connections


def test_a_pool_whose_file_is_removed_is_served_no_more(lab: ApiHosts) -> None:
    (lab.pools / "lb.yaml").unlink()
    wait_for(lambda: lab.agent.json("svc", "list") == [], "the pool gone")
    with lab.inside(), pytest.raises(ConnectionRefusedError):
        ask(*BIND)


def test_no_connection_fails_while_the_agent_is_killed_and_starts_again(lab: ApiHosts) -> None:
    with lab.inside():
        found = watches(6)
        with Load(lab.host, [LOAD], workers=2) as load:
            load.wait_more(30)
            lab.agent.kill()
            load.wait_more(100)  # without an agent the last state serves
            lab.agent.start()
            load.wait_more(100)
            lab.agent.stop()
            load.wait_more(30)
            lab.agent.start()
            load.wait_more(60)
        assert load.tally.failures == []
        assert set(load.tally.answered) == {"a", "b", "c"}
        assert ended(found) == ""


def test_a_restart_knows_which_servers_are_down_and_what_a_bad_file_said(lab: ApiHosts) -> None:
    lab.pool(check={"interval": "1s", "rise": 200})
    lab.behave("a", "500")
    lab.wait_up("bc")
    wait_for(lambda: '"up":false' in (lab.folder / "state" / "apilb.json").read_text(), "the state kept")
    lab.agent.kill()
    (lab.pools / "lb.yaml").write_text("apiLoadBalancerPools: [")
    with lab.inside(), Load(lab.host, [LOAD], workers=2) as load:
        lab.agent.start()
        load.wait_more(50)
    assert load.tally.failures == []
    assert set(load.tally.answered) == {"b", "c"}
    assert [server["up"] for server in lab.rows()[0]["servers"]] == [False, True, True]
    assert any("lb.yaml" in line for source in lab.agent.json("status")["sources"] for line in source["messages"])


def test_a_server_that_went_down_without_an_agent_is_found(lab: ApiHosts) -> None:
    with lab.inside():
        found = watches(6)
    lab.agent.kill()
    lab.behave("a", "refused")
    lab.agent.start()
    lab.wait_up("bc")
    mine = "".join(each.server for each in found if each.server == "a")
    wait_for(lambda: ended(found) == mine, "the watches of that server ended")


# --- one agent or another ---


def test_an_agent_of_a_cluster_may_be_beside_it(lab: ApiHosts) -> None:
    """A DaemonSet's agent starts when the API server is reachable, by native pools: both serve the host's processes."""
    other = NativeAgent(lab, lab.folder / "manifests")  # type: ignore[arg-type]
    lab.folder.joinpath("manifests").mkdir()
    endpoints = [Endpoint(ipv4(name), PORT) for name in "ab"]
    Manifest("web", ("10.96.0.9",), endpoints, port=443).write(other.manifests)
    argv = other.argv()
    argv[argv.index("--apilb") : argv.index("--apilb") + 1] = ["--socket-lb", "--manifests"]
    for flag, value in (("--bpffs", lab.bpffs.with_name("cluster")), ("--socket", lab.folder / "cluster.sock")):
        argv[argv.index(flag) + 1] = str(value)
    argv[argv.index("--state-dir") + 1] = str(lab.folder / "cluster-state")
    with (lab.folder / "cluster.log").open("w") as log:
        process = lab.host.popen(argv, stderr=log, stdout=log, cwd=ROOT)
    lab.closing.callback(end, process)
    client = AgentClient(str(lab.folder / "cluster.sock"))

    def ready() -> bool:
        with contextlib.suppress(LbError):
            return bool(client.status()["ready"])
        return False

    wait_for(ready, "the other agent")
    with lab.inside():
        assert set(reached("10.96.0.9", 443)) == {"a", "b"}
        assert set(reached()) == {"a", "b", "c"}
        lab.behave("a", "500")
        lab.wait_up("bc")
        assert set(reached()) == {"b", "c"}
        assert set(reached("10.96.0.9", 443)) == {"a", "b"}  # a check changes only its own service
    end(process)
    lab.agent.cli("cleanup", "--bpffs", str(lab.bpffs.with_name("cluster")), check=False)


def test_a_named_pipe_among_the_pool_files_stops_neither_the_others_nor_sigterm(lab: ApiHosts) -> None:
    pipe = lab.pools / "pipe.yaml"
    os.mkfifo(pipe)
    wait_for(lambda: str(pipe) in json.dumps(lab.agent.json("status")), "the pipe is named")
    lab.pool(servers=[f"{ipv4('a')}:{PORT}"])
    wait_for(lambda: list(lab.servers_up()) == [f"{ipv4('a')}:{PORT}"], "the other file is followed")
    assert lab.agent.stop() == 0
    pipe.unlink()
    lab.agent.start()


def test_an_agent_without_native_pools_says_so(lab: ApiHosts) -> None:
    other = ApiHosts()
    try:
        other.agent.manifests = other.folder / "manifests"
        other.agent.manifests.mkdir()
        argv = other.agent.argv()
        argv[argv.index("--apilb")] = "--manifests"
        other.agent.argv = lambda: argv  # type: ignore[method-assign]
        other.agent.start()
        with pytest.raises(NotFound, match="without --apilb"):
            other.rows()
    finally:
        other.close()
