"""Processes of the node reach Services by socket programs (--socket-lb): real sockets in the test's own cgroup.

The node has no route to a VIP here: a socket that is not translated fails at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbagent.bpf.hooks import SOCKET_HOOKS, AttachPoint, AttachPointKind
from lbagent.bpf.load.links import pin_path
from lbagent.kernel import bpf_link, bpffs
from lbagent.maps.pins import pin_dir
from tests.e2e.cluster import DNS, NODE, VIP4, WEB, Cluster
from tests.e2e.conftest import NODE_ADDRESSES
from tests.e2e.socket_queries import ask_connected, ask_unconnected, family_of, questions
from tests.lab import cgroup, traffic
from tests.lab.agent import START_TIMEOUT_S
from tests.lab.manifests import Endpoint, Manifest, put
from tests.lab.netns import wait_for
from tests.lab.topology import DNS_PORT

pytestmark = pytest.mark.early

EMPTY, ON_NODE = ("10.96.4.4", "fd00:96::404"), ("10.96.4.6", "fd00:96::406")
NODE_PORT, SERVER_PORT = 30080, 9000
ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


@pytest.fixture(scope="module")
def cluster(socket_cluster: Cluster) -> Cluster:
    return socket_cluster


def is_answered_by(sock: socket.socket, vip: str, name: str) -> bool:
    return ask_unconnected(sock, vip) == (name, vip)


def programs_on(group: Path) -> list[int]:
    fd = os.open(group, os.O_RDONLY)
    try:
        return [ident for hook in SOCKET_HOOKS for ident in bpf_link.cgroup_programs(fd, hook.attach_type)]
    finally:
        os.close(fd)


def test_every_family_and_protocol_reaches_every_backend(inside: Cluster) -> None:
    for vip, port, ask in [(vip, 80, traffic.http_get) for vip in questions(*WEB)] + [
        (vip, 53, traffic.dns_ask) for vip in questions(*DNS)
    ]:
        seen = traffic.spread(inside.lab.node, 60, partial(ask, vip, port))
        assert set(seen) == {"b1", "b2", "b3"}, vip
        assert sum(seen.values()) == 60


def test_the_peer_of_a_connection_is_the_frontend(inside: Cluster) -> None:
    for vip in questions(*WEB):
        with traffic.connect(vip, 80) as sock:
            assert sock.getpeername()[:2] == (vip, 80)
            assert traffic.request(sock)
    for vip in questions(*DNS):
        with socket.socket(family_of(vip), socket.SOCK_DGRAM) as sock:
            sock.connect((vip, 53))
            assert sock.getpeername()[:2] == (vip, 53)
            sock.settimeout(5)
            sock.send(b"short")
            assert sock.recvfrom(100)[1][:2] == (vip, 53)


def test_an_unconnected_socket_keeps_its_backend_and_hears_the_frontend(inside: Cluster) -> None:
    for vip in questions(*DNS):
        seen = set()
        for _ in range(60):
            with socket.socket(family_of(vip), socket.SOCK_DGRAM) as sock:
                answers = {ask_unconnected(sock, vip) for _ in range(5)}
                assert len(answers) == 1
                seen |= answers
        assert seen == {(name, vip) for name in ("b1", "b2", "b3")}


def test_an_unconnected_socket_goes_to_another_backend_when_its_own_is_gone(inside: Cluster) -> None:
    for vip in questions(*DNS):
        with socket.socket(family_of(vip), socket.SOCK_DGRAM) as sock:
            first, _ = ask_unconnected(sock, vip)
            rest = [name for name in ("b1", "b2", "b3") if name != first]
            inside.serve(inside.dns(*rest))
            second, sender = ask_unconnected(sock, vip)
            assert second in rest
            assert sender == vip
            inside.serve(inside.dns())
            assert ask_unconnected(sock, vip) == (second, vip)


def test_a_connected_udp_socket_ends_with_its_backend(inside: Cluster) -> None:
    """A resolver with a connected socket gets an error at once, and must reconnect; connections to other backends stay."""
    for vip in questions(*DNS):
        with contextlib.ExitStack() as stack:
            socks: dict[str, socket.socket] = {}
            while len(socks) < 3:
                sock = stack.enter_context(socket.socket(family_of(vip), socket.SOCK_DGRAM))
                sock.settimeout(10)
                sock.connect((vip, 53))
                name, _ = ask_connected(sock)
                socks.setdefault(name, sock)
            inside.serve(inside.dns("b1", "b3"))
            with pytest.raises(ConnectionAbortedError):
                socks["b2"].recv(100)
            assert [ask_connected(socks[name])[0] for name in ("b1", "b3")] == ["b1", "b3"]
            inside.serve(inside.dns())


def test_sockets_follow_when_a_backend_moves_to_another_service(inside: Cluster) -> None:
    """It runs, and is no longer a backend of their frontend: the connected socket ends, the other one gets another backend."""
    others = ("10.96.4.7", "fd00:96::407")
    for vip in questions(*DNS):
        inside.serve(
            inside.dns("b1"), Manifest("other", others, inside.endpoints("b3", port=DNS_PORT), port=53, protocol="UDP")
        )
        with (
            socket.socket(family_of(vip), socket.SOCK_DGRAM) as connected,
            socket.socket(family_of(vip), socket.SOCK_DGRAM) as unconnected,
        ):
            connected.settimeout(10)
            connected.connect((vip, 53))
            assert (ask_connected(connected)[0], ask_unconnected(unconnected, vip)[0]) == ("b1", "b1")
            moved = Manifest("other", others, inside.endpoints("b1", port=DNS_PORT), port=53, protocol="UDP")
            both = [*inside.dns("b2").objects(), *moved.objects()]
            (inside.folder / "other.yaml").unlink()
            put(inside.folder, "dns.yaml", yaml.safe_dump_all(both))
            inside.wait_backends(moved)
            with pytest.raises(ConnectionAbortedError):
                connected.recv(100)
            wait_for(partial(is_answered_by, unconnected, vip, "b2"), "another backend")
    inside.serve(inside.dns())


def test_a_service_without_backends_refuses_at_once(inside: Cluster) -> None:
    inside.serve(Manifest("none", EMPTY, []), Manifest("none-udp", EMPTY, [], port=53, protocol="UDP"))
    before = inside.packets()
    for vip in questions(*EMPTY):
        with pytest.raises(ConnectionRefusedError):
            traffic.connect(vip, 80, timeout_s=2)
        with socket.socket(family_of(vip), socket.SOCK_DGRAM) as sock:
            with pytest.raises(ConnectionRefusedError):
                sock.sendto(b"anybody there", (vip, 53))
            with pytest.raises(ConnectionRefusedError):
                sock.connect((vip, 53))
    assert inside.packets()["reject_no_backend"] - before["reject_no_backend"] == 9


def test_a_port_that_no_service_has_is_refused_at_once(inside: Cluster) -> None:
    for vip in questions(*WEB):
        with pytest.raises(ConnectionRefusedError):
            traffic.connect(vip, 81, timeout_s=2)


def test_an_address_of_no_service_is_left_alone(inside: Cluster) -> None:
    for address in ("10.77.1.2", "fd77:1::2"):
        with traffic.connect(address, 8080) as sock:
            assert sock.getpeername()[0] == address


def test_a_backend_in_maintenance_gets_nothing_new_and_keeps_what_it_has(inside: Cluster) -> None:
    talkers = traffic.Talkers(inside.lab.node, VIP4, 80, 60)
    try:
        assert set(talkers.first) == {"b1", "b2", "b3"}
        inside.agent.cli("backend", "set-state", "maintenance", "10.77.1.2:8080/TCP")
        try:
            seen = traffic.spread(inside.lab.node, 40, partial(traffic.http_get, VIP4, 80))
            assert set(seen) == {"b2", "b3"}
            assert talkers.ask() == talkers.first
        finally:
            inside.agent.cli("backend", "clear-state", "10.77.1.2:8080/TCP")
    finally:
        talkers.close()


@pytest.mark.parametrize("algorithm", ["random", "maglev"])
def test_session_affinity_keeps_the_node_with_one_backend(inside: Cluster, algorithm: str) -> None:
    affinity = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}}
    inside.serve(inside.web(algorithm=algorithm, spec=affinity))
    try:
        for vip in WEB:
            assert len(traffic.spread(inside.lab.node, 30, partial(traffic.http_get, vip, 80))) == 1
    finally:
        inside.serve(inside.web())


def test_maglev_draws_anew_for_each_connection(inside: Cluster) -> None:
    inside.serve(inside.web(algorithm="maglev"))
    try:
        for vip in WEB:
            assert len(traffic.spread(inside.lab.node, 60, partial(traffic.http_get, vip, 80))) == 3
    finally:
        inside.serve(inside.web())


def test_the_internal_traffic_policy_holds(inside: Cluster) -> None:
    local = {"spec": {"internalTrafficPolicy": "Local"}}
    inside.web(**local).write(inside.folder)
    try:
        inside.wait_backends(inside.web("b3"))
        for vip in WEB:
            assert set(traffic.spread(inside.lab.node, 20, partial(traffic.http_get, vip, 80))) == {"b3"}
        inside.web("b1", **local).write(inside.folder)
        wait_for(lambda: refused(VIP4), "no backend on this node")
    finally:
        inside.serve(inside.web())


def refused(vip: str, port: int = 80) -> bool:
    try:
        traffic.connect(vip, port, timeout_s=2).close()
    except ConnectionRefusedError:
        return True
    return False


@contextlib.contextmanager
def listening(protocol: int = socket.SOCK_STREAM) -> Iterator[dict[str, socket.socket]]:
    """Serve at an address of the node of each family, by a process of the node itself."""
    with contextlib.ExitStack() as stack:
        out = {}
        for address in NODE_ADDRESSES:
            sock = out[address] = stack.enter_context(socket.socket(family_of(address), protocol))
            sock.bind((address, SERVER_PORT))
            if protocol == socket.SOCK_STREAM:
                sock.listen(64)
        yield out


def on_node(**fields: object) -> Manifest:
    """Return a Service whose only backend is that process, also at a NodePort."""
    spec = {"type": "NodePort", "ports": [{"name": "p", "port": 80, "targetPort": "p", "nodePort": NODE_PORT}]}
    endpoints = [Endpoint(address, SERVER_PORT, NODE) for address in NODE_ADDRESSES]
    return Manifest("on-node", ON_NODE, endpoints, spec=spec, **fields)  # type: ignore[arg-type]


def test_a_process_of_the_node_reaches_one_of_the_node(inside: Cluster) -> None:
    """By the ClusterIP, by the NodePort at the node's addresses and at loopback ones; other programs process no packet of it."""
    inside.serve(on_node())
    before = inside.packets()
    with listening():
        asked = [(vip, 80) for vip in questions(*ON_NODE)]
        asked += [(vip, NODE_PORT) for vip in (*questions(*NODE_ADDRESSES, "127.0.0.1", "127.9.9.9"), "::1")]
        for vip, port in asked:
            with traffic.connect(vip, port, timeout_s=3) as sock:
                assert sock.getpeername()[:2] == (vip, port)
    assert inside.packets()["drop_reply_clash"] == before["drop_reply_clash"]
    assert inside.packets()["fwd_socket"] - before["fwd_socket"] == len(asked)


def test_a_node_port_of_other_backends_is_reached_from_the_node(inside: Cluster) -> None:
    spec = {"type": "NodePort", "ports": [{"name": "p", "port": 80, "targetPort": "p", "nodePort": NODE_PORT + 1}]}
    inside.serve(inside.web(spec=spec))
    try:
        for vip in questions(*NODE_ADDRESSES, "127.0.0.1"):
            seen = traffic.spread(inside.lab.node, 60, partial(traffic.http_get, vip, NODE_PORT + 1))
            assert set(seen) == {"b1", "b2", "b3"}
    finally:
        inside.serve(inside.web())


def test_the_external_traffic_policy_is_not_for_the_node(inside: Cluster) -> None:
    """A process of the node is not an external client: it also reaches the backends of other nodes by a NodePort."""
    ports = [{"name": "p", "port": 80, "targetPort": "p", "nodePort": NODE_PORT + 1}]
    inside.serve(inside.web("b1", spec={"type": "NodePort", "externalTrafficPolicy": "Local", "ports": ports}))
    try:
        for vip in NODE_ADDRESSES:
            assert traffic.http_get(vip, NODE_PORT + 1).backend == "b1"
    finally:
        inside.serve(inside.web())


def test_doctor_does_not_complain_of_what_works(inside: Cluster, group: Path) -> None:
    inside.serve(on_node())
    said = inside.agent.cli("doctor", "--bpffs", str(inside.lab.bpffs), check=False).stdout
    assert "NodePorts and HostPorts" not in said
    said = inside.agent.cli("doctor", "--socket-lb", "--cgroup", str(group), check=False).stdout
    assert f"processes of this node in cgroup {group} reach Services by socket programs" in said


def test_sockets_of_another_network_namespace_are_left_alone(served: Cluster, group: Path) -> None:
    before = served.packets()["fwd_socket"]
    with cgroup.joined(group):
        assert sum(served.http(20).values()) == 20
    assert served.packets()["fwd_socket"] == before


def test_status_names_the_cgroup_and_its_programs(served: Cluster, group: Path) -> None:
    (found,) = served.agent.json("status")["cgroups"]
    assert found == {"path": str(group), "hooks": [hook.name for hook in SOCKET_HOOKS]}
    assert f"cgroup     {group}: connect4, connect6" in served.agent.cli("status", check=False).stdout
    assert str(group) not in [device["name"] for device in served.agent.json("status")["devices"]]


def test_a_link_that_was_detached_is_made_again(inside: Cluster, group: Path) -> None:
    target = AttachPoint(AttachPointKind.CGROUP, str(group))
    fd = bpffs.open_pin(pin_path(pin_dir(inside.lab.bpffs), target, SOCKET_HOOKS[0]))
    bpf_link.link_detach(fd)
    os.close(fd)

    def works() -> bool:
        with contextlib.suppress(OSError):  # no route leads to a VIP
            traffic.http_get(VIP4, 80)
            return True
        return False

    wait_for(works, "connect4 attached again", 30)

    def found() -> list[dict[str, Any]]:
        return [item for item in inside.agent.json("status")["conditions"] if item["name"] == "link-detached"]

    wait_for(found, "the condition: it is shown once every check of that round has ended")
    mended = found()
    assert [item["mended"] for item in mended] == [True]
    assert f"connect4 on cgroup {group}" in mended[0]["text"]


def test_no_connect_fails_while_programs_and_agents_are_replaced(inside: Cluster) -> None:
    """Sockets of the node connect without a pause: over a reload with other settings, larger tables, a SIGKILL and a restart."""
    agent, config = inside.agent, inside.lab.folder / "agent.yaml"
    asks = [partial(traffic.http_get, vip, 80) for vip in questions(*WEB)]
    asks += [partial(traffic.dns_ask, vip, 53) for vip in questions(*DNS)]
    agent.arguments += ["--config", str(config)]
    config.write_text("")
    agent.stop()
    try:
        with traffic.Load(inside.lab.node, asks, workers=3, pause_s=0.002) as load:
            agent.start()
            for text in ("reject-rate: 500\n", "reject-rate: 500\nflow-table-size: 2097152\n"):
                before = agent.api.status()["artifact"]
                config.write_text(text)
                agent.process.send_signal(signal.SIGHUP)
                wait_for(
                    lambda before=before: agent.api.status()["artifact"] != before, "new programs", START_TIMEOUT_S
                )
                load.wait_more(100)
            agent.kill()
            load.wait_more(100)
            agent.start()
            load.wait_more(100)
        assert load.tally.failures == []
        assert set(load.tally.answered) == {"b1", "b2", "b3"}
    finally:
        del agent.arguments[-2:]
        agent.stop()
        agent.start()  # with the settings of the other tests


def test_all_goes_on_while_the_agent_is_killed_and_starts_again(inside: Cluster, group: Path) -> None:
    before = programs_on(group)
    with contextlib.ExitStack() as stack:
        open_ones = [stack.enter_context(traffic.connect(vip, 80)) for vip in questions(*WEB)]
        unconnected = [
            (stack.enter_context(socket.socket(family_of(vip), socket.SOCK_DGRAM)), vip) for vip in questions(*DNS)
        ]
        first = [ask_unconnected(*each) for each in unconnected]
        inside.agent.kill()
        for vip in questions(*WEB):
            traffic.http_get(vip, 80)
        inside.agent.start()
        for sock, vip in zip(open_ones, questions(*WEB), strict=True):
            assert traffic.request(sock)
            assert sock.getpeername()[0] == vip
        assert [ask_unconnected(*each) for each in unconnected] == first
    assert programs_on(group) == before
    assert len(before) == len(SOCKET_HOOKS)


def test_what_is_switched_off_is_gone_and_cleanup_leaves_nothing(cluster: Cluster, group: Path) -> None:
    """The last test: the agent ends here."""
    agent = cluster.agent
    agent.stop()
    assert len(programs_on(group)) == len(SOCKET_HOOKS)  # they serve without an agent
    said = agent.cli("status", "--bpffs", str(cluster.lab.bpffs), check=False).stdout
    assert f"cgroup     {group}: socket programs" in said
    agent.arguments.append("--no-socket-lb")
    agent.start()
    assert programs_on(group) == []
    assert agent.json("status")["cgroups"] == []
    agent.stop()
    agent.arguments.pop()
    agent.start()
    assert len(programs_on(group)) == len(SOCKET_HOOKS)
    agent.stop()
    agent.cli("cleanup")
    assert programs_on(group) == []
