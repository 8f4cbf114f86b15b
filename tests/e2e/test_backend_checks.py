"""Health checks of backends: one that refuses, hangs or is cut off takes no new flow, and returns; nothing empties a Service."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from lbagent.config import Config
from lbagent.model.address import L3n4Addr
from tests.e2e.cluster import NODE, VIP4, VIP6, Cluster
from tests.e2e.conftest import opened
from tests.lab.manifests import put
from tests.lab.netns import wait_for
from tests.lab.topology import end

pytestmark = pytest.mark.early

FAST = "interval=200ms timeout=150ms"
TCP = f"tcp {FAST}"
ALL, WITHOUT_B1 = {"b1", "b2", "b3"}, {"b2", "b3"}
B1, B2 = "10.77.1.2:8080/TCP", "10.77.2.2:8080/TCP"
B1_6 = "[fd77:1::2]:8080/TCP"


@pytest.fixture(scope="module", params=["bpf-xdp", "nftables-tc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    renderer, attach = request.param.split("-")
    with opened(attach, ["--renderer", renderer]) as made:
        web(made, TCP)
        made.agent.start()
        yield made


@pytest.fixture
def checked(cluster: Cluster) -> Cluster:
    """All backends answer, and take new flows."""
    for path in cluster.folder.iterdir():
        path.unlink()
    web(cluster, TCP)
    for name in sorted(ALL):
        process = cluster.lab.backends[name].process
        if process is None or process.poll() is not None:
            cluster.lab.serve(name)
        else:
            process.send_signal(signal.SIGCONT)
    cluster.agent.cli("backend", "clear-state", B1, check=False)
    wait_for(lambda: takes_flows(cluster) == ALL and checks(cluster) == {"up"}, "all backends")
    return cluster


def web(made: Cluster, check: str, **more: str) -> None:
    made.web(annotations={"lbagent.io/health-check": check, **more}).write(made.folder)


def takes_flows(made: Cluster, service: str = "web", port: int = 8080, protocol: str = "TCP") -> set[str]:
    """Return the backends that get new flows; none while those of IPv4 and IPv6 differ."""
    found = made.selectable(service) or set()
    backends = made.lab.backends.items()
    ipv4 = {name for name, each in backends if f"{each.ipv4}:{port}/{protocol}" in found}
    ipv6 = {name for name, each in backends if f"[{each.ipv6}]:{port}/{protocol}" in found}
    return ipv4 if ipv4 == ipv6 else set()


def checks(made: Cluster) -> set[str]:
    """Return the states that the checks of the backends have."""
    return {row["check"]["state"] if "check" in row else "" for row in made.agent.api.backends()}


def row_of(made: Cluster, address: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in made.agent.api.backends() if row["address"] == address)
    return found


def state_of(made: Cluster, address: str) -> str:
    return str(row_of(made, address)["state"])


def metric(made: Cluster, name: str) -> dict[str, float]:
    """Return the samples of a metric by their labels, as the text has them."""
    lines = [line for line in made.agent.api.metrics().splitlines() if line.startswith(f"{name}{{")]
    return {line[len(name) :].rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def kill(made: Cluster, name: str) -> None:
    process = made.lab.backends[name].process
    assert process is not None
    end(process)


def test_a_backend_that_refuses_takes_no_new_flow_and_returns(checked: Cluster) -> None:
    assert set(checked.http(60)) == ALL
    began = time.time()
    kill(checked, "b1")
    wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "the end of new flows to b1")
    wait_for(lambda: state_of(checked, B1) == state_of(checked, B1_6) == "quarantined", "b1 quarantined")
    assert set(checked.http(60)) == WITHOUT_B1

    check = row_of(checked, B1)["check"]
    assert (check["type"], check["state"], check["error"]) == ("tcp", "down", "connection refused")
    assert began <= check["since"] <= time.time()
    assert row_of(checked, B2)["check"] | {"since": 0} == {"type": "tcp", "state": "up", "since": 0, "error": ""}
    table = checked.agent.cli("backend", "list", "-o", "wide").stdout.splitlines()
    (line,) = [each for each in table if f" {B1} " in each]
    assert "down: connection refused" in line
    assert " check " in f"{line} "  # SET-BY
    assert "check    tcp down since 20" in checked.agent.cli("backend", "get", B1).stdout
    up = metric(checked, "lbagent_backend_check_up")
    assert up[f'{{service="e2e/web",backend="{B1}"}}'] == 0
    assert up[f'{{service="e2e/web",backend="{B2}"}}'] == 1
    assert metric(checked, "lbagent_health_panic") == {'{service="e2e/web"}': 0}

    cause = rf"health check of e2e/web: [^;]*{re.escape(B1)}[^;]* down"  # the other family's, too, if both fail at once
    assert re.search(cause, checked.agent.cli("history").stdout)
    planned = checked.agent.cli("plan", "--live", "-f", str(checked.folder), "-o", "json").stdout
    assert json.loads(planned)["changes"] == []

    checked.lab.serve("b1")
    wait_for(lambda: takes_flows(checked) == ALL, "new flows to b1")
    assert set(checked.http(60)) == ALL
    wait_for(lambda: row_of(checked, B1)["check"]["state"] == "up", "the check of b1")


def test_the_flows_of_a_backend_that_fails_go_on(checked: Cluster) -> None:
    """The check goes to another port, where b1 has no server; its connections work."""
    with contextlib.ExitStack() as closing:
        for name in sorted(WITHOUT_B1):
            argv = [sys.executable, "-m", "http.server", "8099", "--bind", "::"]
            space = checked.lab.namespaces[name]
            closing.callback(end, space.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            wait_for(partial(space.call, answers_8099), f"the other server of {name}")
        talkers = checked.talkers(60)
        closing.callback(talkers.close)
        assert set(talkers.first) == ALL
        web(checked, "http:8099/ interval=1s timeout=1s")  # so long for an answer of a busy machine
        wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "the end of new flows to b1")
        for _ in range(20):
            assert talkers.ask() == talkers.first
            time.sleep(0.05)
        assert set(checked.http(40)) == WITHOUT_B1


def answers_8099() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 8099), 1):
        return True
    return False


def test_a_backend_that_is_cut_off(checked: Cluster) -> None:
    space = checked.lab.namespaces["b1"]
    space.ip("link set e0 down")
    try:
        wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "the end of new flows to b1")
        assert row_of(checked, B1)["check"]["error"] in ("no answer within 0.15 s", "No route to host")
    finally:
        space.ip("link set e0 up", "addr add fd77:1::2/64 dev e0 nodad", "route replace default via 10.77.1.1")
        space.ip("route replace default via fd77:1::1")
    wait_for(lambda: takes_flows(checked) == ALL, "new flows to b1", 60)


def test_a_process_that_hangs_passes_tcp_and_fails_http(checked: Cluster) -> None:
    process = checked.lab.backends["b1"].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    assert takes_flows(checked) == ALL  # its kernel accepts connections
    web(checked, f"http/ {FAST}")
    wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "the end of new flows to b1")
    check = row_of(checked, B1)["check"]
    assert (check["type"], check["error"]) == ("http", "no answer within 0.15 s")
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: takes_flows(checked) == ALL, "new flows to b1")


def test_the_operators_state_wins_over_the_checks_and_that_one_over_a_manifests_active(checked: Cluster) -> None:
    state = {"apiVersion": "lbagent.io/v1alpha1", "kind": "BackendState", "metadata": {"name": "b1"}}
    put(checked.folder, "b1.yaml", json.dumps(state | {"spec": {"address": B1, "state": "active"}}))
    kill(checked, "b1")
    wait_for(lambda: state_of(checked, B1) == "quarantined", "the check to win over the manifest's active")
    checked.agent.cli("backend", "set-state", "active", B1)
    assert state_of(checked, B1) == "active"
    assert B1 in (checked.selectable("web") or ())
    assert row_of(checked, B1)["check"]["state"] == "down"
    time.sleep(1)
    assert state_of(checked, B1) == "active"
    checked.agent.cli("backend", "clear-state", B1)
    assert state_of(checked, B1) == "quarantined"
    checked.agent.cli("backend", "set-state", "maintenance", B1)
    assert state_of(checked, B1) == "maintenance"
    checked.lab.serve("b1")
    time.sleep(1.5)
    assert state_of(checked, B1) == "maintenance"
    checked.agent.cli("backend", "clear-state", B1)
    wait_for(lambda: state_of(checked, B1) == "active", "b1 active")


def test_a_backend_that_fails_is_drained_with_its_node(checked: Cluster) -> None:
    """It is quarantined when the drain begins, and takes no flow when it answers again."""
    kill(checked, "b1")
    wait_for(lambda: state_of(checked, B1) == state_of(checked, B1_6) == "quarantined", "b1 quarantined")
    checked.agent.cli("node", "drain", "node-b1", "--timeout", "60s", "--yes")
    assert state_of(checked, B1) == state_of(checked, B1_6) == "maintenance"
    checked.lab.serve("b1")
    time.sleep(1.5)
    assert state_of(checked, B1) == "maintenance"
    assert set(checked.http(40)) == WITHOUT_B1
    checked.agent.cli("backend", "clear-state", "--node", "node-b1")
    wait_for(lambda: takes_flows(checked) == ALL, "new flows to b1")


def test_when_more_than_half_fail_none_is_out(checked: Cluster) -> None:
    kill(checked, "b1")
    wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "the end of new flows to b1")
    kill(checked, "b2")
    wait_for(lambda: takes_flows(checked) == ALL, "all backends again")
    assert metric(checked, "lbagent_health_panic") == {'{service="e2e/web"}': 1}
    messages = checked.agent.api.status()["problems"]
    assert any("Service e2e/web: " in each and "lbagent.io/health-check" in each for each in messages), messages
    assert any("the check of 2 of 3 backends of port p/TCP, IPv4, fails" in each for each in messages), messages
    assert {row_of(checked, each)["check"]["state"] for each in (B1, B2)} == {"down"}
    checked.lab.serve("b2")
    wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "b1 out again")
    assert metric(checked, "lbagent_health_panic") == {'{service="e2e/web"}': 0}


def test_a_restarted_agent_gives_no_flow_to_what_was_down(checked: Cluster) -> None:
    web(checked, "tcp interval=1s timeout=500ms fall=3")
    wait_for(lambda: checks(checked) == {"up"}, "the checks")
    kill(checked, "b1")
    wait_for(lambda: state_of(checked, B1) == state_of(checked, B1_6) == "quarantined", "b1 quarantined")
    for stop in (checked.agent.stop, checked.agent.kill):
        stop()
        checked.agent.start()
        assert takes_flows(checked) == WITHOUT_B1
        assert state_of(checked, B1) == "quarantined"
        assert set(checked.http(40)) == WITHOUT_B1


def test_a_client_with_affinity_leaves_a_backend_that_fails(checked: Cluster) -> None:
    """Its next connection goes to another one, and the later ones too, when the first backend is back."""
    spec = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}}
    made = checked.web(annotations={"lbagent.io/health-check": TCP})
    made.spec |= spec
    checked.serve(made)
    wait_for(lambda: checks(checked) == {"up"}, "the checks")
    (name,) = checked.http(10, [VIP4])
    kill(checked, name)
    wait_for(lambda: takes_flows(checked) == ALL - {name}, f"the end of new flows to {name}")
    (other,) = checked.http(10, [VIP4])
    assert other != name
    checked.lab.serve(name)
    wait_for(lambda: takes_flows(checked) == ALL, "all backends")
    assert set(checked.http(10, [VIP4])) == {other}


def test_udp(checked: Cluster) -> None:
    made = checked
    made.dns(annotations={"lbagent.io/health-check": f"udp {FAST}"}).write(made.folder)
    dns = lambda: takes_flows(made, "dns", 5353, "UDP")  # noqa: E731
    wait_for(lambda: dns() == ALL, "the DNS service")
    kill(made, "b1")
    wait_for(lambda: dns() == WITHOUT_B1, "the end of new flows to b1")
    assert row_of(made, "10.77.1.2:5353/UDP")["check"]["error"] == "port unreachable"
    assert set(made.ask_dns(60)) == WITHOUT_B1


THROUGH_SERVICE = pytest.mark.parametrize("cluster", ["bpf-xdp"], indirect=True)  # with nftables probes go directly


def probed(made: Cluster) -> dict[str, set[str]]:
    """Return the backends to which flows of the node go, by frontend."""
    found: dict[str, set[str]] = {VIP4: set(), VIP6: set()}
    for flow in json.loads(made.agent.cli("flow", "list", "-o", "json").stdout):
        if L3n4Addr.parse(flow["client"]).ip in ("10.77.0.1", "fd77::1"):
            found[L3n4Addr.parse(flow["frontend"]).ip].add(L3n4Addr.parse(flow["backend"]).ip)
    return found


@THROUGH_SERVICE
def test_through_the_service_a_check_proves_its_forwarding(checked: Cluster) -> None:
    """Each backend is probed at the address of the Service, also while it has no slot."""
    made = checked
    made.lab.node.ip("route replace default via 10.77.0.2", "route replace default via fd77::2")
    web(made, f"{TCP} via=vip")
    wait_for(lambda: checks(made) == {"up"}, "the checks")
    time.sleep(2)
    assert checks(made) == {"up"}
    backends = made.lab.backends.values()
    wanted = {VIP4: {each.ipv4 for each in backends}, VIP6: {each.ipv6 for each in backends}}
    wait_for(lambda: probed(made) == wanted, "a flow of the node to each backend")
    kill(made, "b1")
    wait_for(lambda: takes_flows(made) == WITHOUT_B1, "the end of new flows to b1")
    assert set(made.http(60)) == WITHOUT_B1
    made.lab.serve("b1")
    wait_for(lambda: takes_flows(made) == ALL, "new flows to b1, which was probed while it had no slot")


@THROUGH_SERVICE
def test_what_only_the_forwarding_lacks_fails_through_the_service_alone(checked: Cluster) -> None:
    """b1 drops what comes from the SNAT ports of the node: its own address answers, and no client reaches it."""
    made, space = checked, checked.lab.namespaces["b1"]
    made.lab.node.ip("route replace default via 10.77.0.2", "route replace default via fd77::2")
    first, last = Config().snat_port_range
    rules = f"table inet f {{ chain c {{ type filter hook input priority 0; tcp sport {first}-{last} tcp dport 8080 drop; }}; }}"
    subprocess.run(space.command(["nft", rules]), check=True)
    try:
        time.sleep(2)
        assert takes_flows(made) == ALL
        web(made, f"{TCP} via=vip")
        wait_for(lambda: takes_flows(made) == WITHOUT_B1, "the end of new flows to b1")
        assert set(made.http(40)) == WITHOUT_B1
    finally:
        subprocess.run(space.command(["nft", "delete", "table", "inet", "f"]), check=True)
    wait_for(lambda: takes_flows(made) == ALL, "new flows to b1")


def test_from_local_checks_the_backends_of_this_node_alone(checked: Cluster) -> None:
    web(checked, TCP, **{"lbagent.io/health-check-from": "local"})
    b3 = checked.lab.backends["b3"]
    wait_for(
        lambda: [each["node"] for each in checked.agent.api.backends() if "check" in each] == [NODE] * 2, "one node"
    )
    kill(checked, "b1")
    kill(checked, "b3")
    wait_for(lambda: state_of(checked, f"{b3.ipv4}:8080/TCP") == "quarantined", "b3 quarantined")
    time.sleep(1)
    assert state_of(checked, B1) == "active"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tpc", "'tpc' is not a type of check; one of tcp, http, https, "),
        ("tcp/x", "a check by tcp has no path"),
        ("tcp interval=soon", "'soon' is not a time like 30s, 2m or 500ms"),
    ],
)
def test_a_check_that_does_not_parse_is_named_and_the_last_good_one_stays(
    checked: Cluster, text: str, problem: str
) -> None:
    web(checked, text)

    def messages() -> list[str]:
        return [each for source in checked.agent.api.status()["sources"] for each in source["messages"]]

    wait_for(lambda: any(problem in each for each in messages()), "the message")
    (message,) = messages()
    assert "web.yaml:" in message
    assert "Service e2e/web: metadata.annotations.lbagent.io/health-check: " in message
    kill(checked, "b1")
    wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "the last good check")


def test_without_the_annotation_nothing_is_checked(checked: Cluster) -> None:
    kill(checked, "b1")
    wait_for(lambda: takes_flows(checked) == WITHOUT_B1, "the end of new flows to b1")
    checked.web().write(checked.folder)
    wait_for(lambda: takes_flows(checked) == ALL, "all backends")
    assert checks(checked) == {""}
    assert metric(checked, "lbagent_health_panic") == {}


@pytest.mark.parametrize("vip", [VIP4, VIP6], ids=["ipv4", "ipv6"])
def test_a_client_with_affinity_leaves_a_backend_that_fails_and_stays_where_it_went(checked: Cluster, vip: str) -> None:
    """The next new flow chooses again, and that choice holds when the backend is well again."""
    spec = {"sessionAffinity": "ClientIP"}
    checked.web(annotations={"lbagent.io/health-check": TCP}, spec=spec).write(checked.folder)
    wait_for(lambda: all(each["affinity_timeout_s"] for each in checked.agent.api.services()), "affinity")
    (first,) = checked.http(20, vips=[vip])
    kill(checked, first)
    wait_for(lambda: takes_flows(checked) == ALL - {first}, f"the end of new flows to {first}")
    (second,) = checked.http(20, vips=[vip])
    assert second != first
    checked.lab.serve(first)
    wait_for(lambda: takes_flows(checked) == ALL, f"new flows to {first}")
    assert set(checked.http(20, vips=[vip])) == {second}
