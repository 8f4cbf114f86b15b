"""`explain`: its answer is what happens to the packet that is sent then, and the question changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap, wrpcapng

from lbagent.errors import NotFound
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB_COUNTER
from lbagent.maps.reasons import Reason
from lbagent.maps.specs import MapType, counter_stripe_bytes
from tests.e2e.cluster import DNS, VIP4, WEB, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest, put
from tests.lab.netns import wait_for

CLIENTS = ("10.77.0.2", "fd77::2")  # the client's addresses, by family as WEB and DNS
LB = ("10.96.0.77", "fd00:96::77")
Answer = dict[str, Any]


def end(address: str, port: int) -> str:
    """Return ADDRESS:PORT."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def explained(cluster: Cluster, source: str, destination: str, protocol: str = "tcp", **words: Any) -> Answer:
    """Return the answer about one packet."""
    options = {name: words.pop(name) for name in ("device", "hook", "manifests") if name in words}
    packet = {"source": source, "destination": destination, "protocol": protocol, **words}
    (answer,) = cluster.agent.api.explain({"packets": [packet], **options}, 60.0)
    return answer


def is_explained(cluster: Cluster, source: str, destination: str) -> bool:
    """Return whether the agent has a route for such a packet."""
    with contextlib.suppress(NotFound):
        return bool(explained(cluster, source, destination))
    return False


def results(answer: Answer) -> dict[str, str]:
    """Return the result of each step."""
    return {step["step"]: step["result"] for step in answer["steps"]}


def backend_name(cluster: Cluster, answer: Answer) -> str:
    """Return the name of the server at the backend's address."""
    address = answer["backend"].rpartition(":")[0].strip("[]")
    return next(each.name for each in cluster.lab.backends.values() if address in (each.ipv4, each.ipv6))


# --- what really happens ---


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_new_flow_reaches_the_backend_that_was_named(served: Cluster, family: int) -> None:
    """TCP and UDP, to backends on other nodes and on this one: backend, source address, verdict and steps."""
    seen = Counter[str]()
    for number in range(64):
        port = 41000 + 100 * family + number
        tcp = explained(served, end(CLIENTS[family], port), end(WEB[family], 80))
        udp = explained(served, end(CLIENTS[family], port), end(DNS[family], 53), "udp")
        for answer, reached in (
            (tcp, served.client.call(traffic.http_get, WEB[family], 80, source_port=port)),
            (udp, served.client.call(traffic.dns_ask, DNS[family], 53, source_port=port)),
        ):
            assert reached.backend == backend_name(served, answer)
            assert answer["reason"] == ("fwd_local" if reached.backend == "b3" else "fwd_new")
            assert answer["verdict"] == ("local" if reached.backend == "b3" else "forward")
            assert answer["output"]["source"].rpartition(":")[0].strip("[]") == reached.client
            assert answer["output"]["destination"] == answer["backend"]
            assert answer["output"]["device"] == {"b1": "lan1", "b2": "lan2", "b3": ""}[reached.backend]
            assert results(answer)["flow"] == "miss"
            assert ("snat-port" in results(answer)) == (reached.backend != "b3")
            seen[answer["packet"]["protocol"] + reached.backend] += 1
    assert len(seen) == 6, seen


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_packets_of_a_flow_hit_it_in_both_directions(served: Cluster, family: int) -> None:
    """An open connection: its next segment, and the backend's reply to the SNAT port."""
    port = 42000 + 10 * family
    for backend, device in (("b1", "lan1"), ("b3", "pod3")):
        served.serve(served.web(backend))
        port += 1
        with served.client.entered():
            connection = traffic.connect(WEB[family], 80, source_port=port)
        with contextlib.closing(connection):
            assert traffic.request(connection)
            source, frontend = end(CLIENTS[family], port), end(WEB[family], 80)
            answer = explained(served, source, frontend, flags="A")
            assert results(answer)["flow"] == "hit"
            assert not {"service", "select", "snat-port"} & results(answer).keys()
            assert backend_name(served, answer) == backend
            assert answer["reason"] == ("fwd_local" if backend == "b3" else "fwd_established")
            assert answer["service"] == "e2e/web"
            back = explained(served, answer["backend"], answer["output"]["source"], flags="A", device=device)
            assert (back["verdict"], back["reason"]) == ("forward", "fwd_reply")
            assert back["output"] == {"source": frontend, "destination": source, "device": "wan"}
            assert results(back)["flow" if backend == "b3" else "snat-slot"] == "hit"
            assert backend_name(served, back) == backend


def test_flow_whose_backend_is_gone_is_stale(served: Cluster) -> None:
    """Its next segment is answered with RST."""
    served.serve(served.web("b1"))
    with served.client.entered():
        connection = traffic.connect(VIP4, 80, source_port=42100)
    with contextlib.closing(connection):
        assert traffic.request(connection)
        served.serve(served.web("b2"))
        answer = explained(served, "10.77.0.2:42100", f"{VIP4}:80", flags="A")
        assert results(answer)["flow"] == "stale"
        assert results(answer)["answer"] == "rst"
        assert (answer["verdict"], answer["reason"]) == ("answer", "reject_backend_gone")
        assert answer["output"] == {"source": f"{VIP4}:80", "destination": "10.77.0.2:42100", "device": "wan"}
        with pytest.raises(ConnectionResetError):
            traffic.request(connection)


def load_balancer(cluster: Cluster, **spec: object) -> Manifest:
    """Return a Service of type LoadBalancer at LB."""
    return Manifest("lb", ("10.96.0.78", "fd00:96::78"), cluster.endpoints("b1"), spec={"type": "LoadBalancer", **spec})


def serve_load_balancer(cluster: Cluster, manifest: Manifest) -> None:
    """Write it with its addresses, and wait until it is in force."""
    service, *slices = manifest.objects()
    service["status"] = {"loadBalancer": {"ingress": [{"ip": address} for address in LB]}}
    put(cluster.folder, "lb.yaml", yaml.safe_dump_all([service, *slices]))
    cluster.wait_backends(manifest)


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_refused_packets_are_counted_under_the_reason_that_was_named(
    served: Cluster, family: int, protocol: str
) -> None:
    """Source range, no backend, undefined port, no Service: verdict and reason, then the counter of the packet that is sent."""
    outside = ["192.0.2.0/24", "2001:db8::/64"]
    refusing = load_balancer(served, loadBalancerSourceRanges=outside)
    empty = Manifest("empty", ("10.96.0.99", "fd00:96::99"), [])
    refusing.protocol = empty.protocol = protocol.upper()
    empty.write(served.folder)
    serve_load_balancer(served, refusing)
    wait_for(lambda: served.selectable("empty") == set(), "the Service without backends")
    client = CLIENTS[family]
    for number, (address, port, verdict, reason, step) in enumerate(
        (
            (LB[family], 80, "drop", "drop_source_range", ("source-range", "out")),
            (empty.vips[family], 80, "answer", "reject_no_backend", ("select", "none")),
            (WEB[family], 81, "answer", "reject_undefined_port", ("service", "miss")),
        )
    ):
        source_port = 43000 + number
        answer = explained(served, end(client, source_port), end(address, port), protocol)
        assert (answer["verdict"], answer["reason"]) == (verdict, reason)
        assert step in results(answer).items()
        assert answer["advice"]
        before = served.packets()
        served.client.call(send_one, client, source_port, address, port, protocol)
        wait_for(lambda: served.packets()[reason] > before[reason], reason)  # noqa: B023
    none = explained(served, end(client, 43010), end(("10.77.0.1", "fd77::1")[family], 9999), protocol, device="wan")
    assert (none["verdict"], none["backend"], none["output"]) == ("pass", None, None)


def send_one(source: str, source_port: int, address: str, port: int, protocol: str) -> None:
    """Send one packet from this namespace, and do not wait for an answer."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    with socket.socket(family, kind) as sock:
        sock.setblocking(False)
        sock.bind((source, source_port))
        with contextlib.suppress(BlockingIOError, OSError):
            sock.connect((address, port))
            sock.send(b"x" * 30)


def test_admitted_client_and_affinity(served: Cluster) -> None:
    """source-range: in; the second port of a client meets the backend of the first."""
    manifest = load_balancer(served, loadBalancerSourceRanges=["10.77.0.0/24"], sessionAffinity="ClientIP")
    manifest = Manifest(**{**vars(manifest), "endpoints": served.endpoints("b1", "b2", "b3")})
    serve_load_balancer(served, manifest)
    first = explained(served, "10.77.0.2:44000", f"{LB[0]}:80")
    assert (results(first)["source-range"], results(first)["affinity"]) == ("in", "miss")
    reached = served.client.call(traffic.http_get, LB[0], 80, source_port=44000)
    assert reached.backend == backend_name(served, first)
    for port in range(44001, 44009):
        again = explained(served, f"10.77.0.2:{port}", f"{LB[0]}:80")
        assert results(again)["affinity"] == "hit"
        assert backend_name(served, again) == reached.backend
        assert served.client.call(traffic.http_get, LB[0], 80, source_port=port).backend == reached.backend


def test_packet_of_a_pod_and_of_the_node_itself(served: Cluster) -> None:
    """The default device is the one that routes the source; the node's own packets leave."""
    served.lab.node.ip("route add default via 10.77.0.2")
    try:
        served.serve(served.web("b2"))
        wait_for(lambda: is_explained(served, "10.77.0.1:45000", f"{VIP4}:80"), "the agent to see the route")
        pod = explained(served, "10.244.0.2:45000", f"{VIP4}:80")
        node = explained(served, "10.77.0.1:45000", f"{VIP4}:80")
        assert (pod["packet"]["device"], pod["packet"]["hook"]) == ("pod3", "tc_ingress")
        assert (node["packet"]["device"], node["packet"]["hook"]) == ("wan", "tc_egress")
        assert results(pod)["scope"] == results(node)["scope"] == "internal"
        assert (node["verdict"], node["output"]["device"]) == ("forward", "lan2")
        assert (pod["verdict"], pod["output"]["device"]) == ("local", "")  # it keeps its address: the stack sends it
        for space, source, answer in ((served.lab.namespaces["b3"], 45000, pod), (served.lab.node, 45000, node)):
            reached = space.call(traffic.http_get, VIP4, 80, source_port=source)
            assert reached.backend == backend_name(served, answer) == "b2"
            assert reached.client == answer["output"]["source"].rpartition(":")[0]
    finally:
        served.lab.node.ip("route del default via 10.77.0.2")


# --- it changes nothing ---


def without_passed(counters: bytes, stripe_bytes: int) -> bytes:
    """Return lb_metrics with zeros for the packets that concern no Service, in each stripe."""
    out, size = bytearray(counters), LB_COUNTER.size
    for stripe in range(0, len(out), stripe_bytes):
        first = stripe + Reason.PASS_NOT_SERVICE * size
        out[first : first + size] = bytes(size)
    return bytes(out)


def contents(bpffs: Path) -> Mapping[str, str]:
    """Return a digest of each pinned map.

    Without what any frame writes that a device receives, as the kernel's own neighbour discovery: the scratch record, and the count of
    packets that concern no Service.
    """
    out = {}
    with KernelMaps.open(str(bpffs), create=False) as maps:
        for name, spec in maps.specs.items():
            if name in ("lb_config", "lb_calls_xdp", "lb_calls_tc", "lb_neighbor", "lb_scratch"):
                continue
            rows = maps.maglev(name) if spec.type is MapType.HASH_OF_MAPS else dict(maps.items(name))
            if name == "lb_metrics":
                rows = {key: without_passed(value, counter_stripe_bytes(maps.sizes)) for key, value in rows.items()}
            out[name] = hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()
    return out


def test_every_map_is_as_before(fresh: Any) -> None:
    """Without traffic, new flows, refusals and replies in question leave each map as it was, byte for byte."""
    cluster = fresh("xdp", "--sweep-interval", "1h")
    cluster.web().write(cluster.folder)
    cluster.dns().write(cluster.folder)
    cluster.agent.start()
    wait_for(lambda: cluster.agent.api.status()["sweeps"] > 0, "the sweep after the start", 60)
    explained(cluster, "10.77.0.2:40000", f"{VIP4}:80")
    before = contents(cluster.lab.bpffs)
    for number in range(60):
        for family in (0, 1):
            explained(cluster, end(CLIENTS[family], 40000 + number), end(WEB[family], 80 + number % 2))
            explained(cluster, end(CLIENTS[family], 40000 + number), end(DNS[family], 53), "udp", hook="tc_ingress")
    assert contents(cluster.lab.bpffs) == before


def test_under_load_no_packet_differs_and_nothing_is_counted(served: Cluster) -> None:
    """While web is in use, 300 questions about dns leave no flow and no count of dns, and no request fails."""

    def counted() -> list[str]:
        lines = served.agent.api.metrics().splitlines()
        return sorted(line for line in lines if line.startswith("lbagent_service_packets_total{") and "dns" in line)

    before = counted()
    assert before
    with served.load(dns=False) as load:
        load.wait_more(50)
        for number in range(300):
            answer = explained(served, f"10.77.0.2:{50000 + number}", f"{DNS[0]}:53", "udp")
            assert results(answer)["flow"] == "miss"
        load.wait_more(50)
    assert load.tally.failures == []
    assert counted() == before
    again = explained(served, "10.77.0.2:50000", f"{DNS[0]}:53", "udp")
    assert results(again)["flow"] == "miss"


# --- the command ---


def test_command_and_its_exit_codes(served: Cluster) -> None:
    """Text and JSON, --expect, and one sentence for what is wrong."""
    served.serve(served.web("b1"))
    run = served.agent.cli
    done = run("explain", "10.77.0.2:16000", f"{VIP4}:80")
    assert "forwarded (fwd_new)" in done.stdout
    assert "by lan1" in done.stdout
    found = json.loads(run("explain", "10.77.0.2:16000", f"{VIP4}:80/TCP", "-o", "json").stdout)
    assert list(found)[:10] == [
        "packet", "steps", "verdict", "action", "reason", "service", "frontend", "backend", "output", "generation",
    ]  # fmt: skip
    assert found["backend"] == "10.77.1.2:8080"
    assert found["frontend"] == f"{VIP4}:80/TCP"
    assert all(list(step) == ["step", "result", "text", "map", "key", "entry"] for step in found["steps"])
    for word in ("forward", "fwd_new", "10.77.1.2:8080"):
        assert run("explain", "10.77.0.2:16000", f"{VIP4}:80", "--expect", word).returncode == 0
    for words, code, text in (
        (("10.77.0.2:16000", f"{VIP4}:80", "--expect", "drop"), 1, "expected drop, got forward"),
        (("10.77.0.2", f"{VIP4}:80"), 2, "the port is missing"),
        (("10.77.0.2:16000", "[fd00:96::10]:80"), 2, "different address families"),
        (("10.77.0.2:16000", f"{VIP4}:80/dccp"), 2, "unknown protocol"),
        (("10.77.0.2:16000", f"{VIP4}:80", "--flags", "X"), 2, "flags"),
        (("--pcap", "/no/such/file"), 2, "No such file"),
        (("10.77.0.2:16000", f"{VIP4}:80", "--device", "nope"), 3, "no device 'nope'"),
    ):
        failed = run("explain", *words, check=False)
        assert (failed.returncode, text in failed.stderr) == (code, True), failed
        assert len(failed.stderr.splitlines()) == 1


@pytest.mark.parametrize("write", [wrpcap, wrpcapng], ids=["pcap", "pcapng"])
def test_frames_of_a_capture(served: Cluster, tmp_path: Path, write: Any) -> None:
    """One line for each frame, the same answer as for the addresses; ARP passes."""
    served.serve(served.web("b1"))
    mac = ":".join(f"{byte:02x}" for byte in served.lab.node.mac("wan"))
    head = Ether(src="02:00:00:00:00:99", dst=mac)
    packets = [
        head / IP(src="10.77.0.2", dst=VIP4) / TCP(sport=47000, dport=80, flags="S"),
        head / IPv6(src="fd77::2", dst=DNS[1]) / UDP(sport=47001, dport=53) / b"question",
        Ether(src="02:00:00:00:00:99", dst="ff:ff:ff:ff:ff:ff", type=0x0806) / (b"\0" * 46),
    ]
    path = tmp_path / "capture"
    write(str(path), packets)
    done = served.agent.cli("explain", "--pcap", str(path), "--device", "wan")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["verdict"] for line in lines[:1]] == ["forward"]
    assert lines[0]["backend"] == explained(served, "10.77.0.2:47000", f"{VIP4}:80")["backend"]
    assert lines[1]["backend"] == explained(served, "[fd77::2]:47001", end(DNS[1], 53), "udp")["backend"]
    assert (lines[2]["verdict"], lines[2]["packet"]["source"]) == ("pass", "")


def test_answer_takes_less_than_100_ms_once_loaded(served: Cluster) -> None:
    """The best of many: other tests share the processor."""
    explained(served, "10.77.0.2:48000", f"{VIP4}:80")

    def took_s() -> float:
        start = time.perf_counter()
        explained(served, "10.77.0.2:48000", f"{VIP4}:80")
        return time.perf_counter() - start

    wait_for(lambda: took_s() < 0.1, "an answer within 100 ms", 20)


# --- under manifests that are not in force ---


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_folder_is_answered_as_it_is_answered_when_it_is_in_force(served: Cluster, family: int, tmp_path: Path) -> None:
    """Another Service and other backends: the same answers before and after they are applied; nothing changes meanwhile."""
    new = Manifest("new", ("10.96.0.88", "fd00:96::88"), served.endpoints("b1", "b2", "b3"), algorithm="maglev")
    web = served.web("b2")
    new.write(tmp_path)
    web.write(tmp_path)
    ends = [end(CLIENTS[family], 12000 + number) for number in range(8)]  # of no connection of another test
    frontends = [end(new.vips[family], 80), end(WEB[family], 80), end(new.vips[family], 81)]

    def command(source: str, frontend: str) -> Answer:
        done = served.agent.cli("explain", source, frontend, "-f", str(tmp_path), "-o", "json")
        found: Answer = json.loads(done.stdout)
        return found

    asked = [(source, frontend) for source in ends[:3] for frontend in frontends]
    before = [command(*each) for each in asked]
    assert explained(served, ends[0], frontends[0])["verdict"] == "pass"
    served.serve(new, web)
    after = [explained(served, *each) for each in asked]
    for old, now in zip(before, after, strict=True):
        assert [old[key] for key in ("verdict", "reason", "service", "backend")] == [
            now[key] for key in ("verdict", "reason", "service", "backend")
        ]
        assert [step["step"] for step in old["steps"]] == [step["step"] for step in now["steps"]]


def test_folder_that_is_not_there_or_not_good(served: Cluster, tmp_path: Path) -> None:
    """One sentence, exit code 2."""
    words = ("explain", "10.77.0.2:1", f"{VIP4}:80", "-f")
    missing = served.agent.cli(*words, str(tmp_path / "none"), check=False)
    put(tmp_path, "bad.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: 5}\n")
    bad = served.agent.cli(*words, str(tmp_path), check=False)
    assert (missing.returncode, bad.returncode) == (2, 2)
    assert "No such file" in missing.stderr
    assert "bad.yaml" in bad.stderr


# --- odd frames and limits ---


def test_packet_that_does_not_fit_its_way(served: Cluster) -> None:
    """With --length beyond the MTU its sender is answered, with that MTU."""
    served.serve(served.web("b1"))
    answer = explained(served, "10.77.0.2:48100", f"{VIP4}:80", length=1600)
    assert (answer["verdict"], answer["reason"]) == ("answer", "answer_too_big")
    step = next(step for step in answer["steps"] if step["step"] == "answer")
    assert step["result"] == "too-big"
    assert "MTU 1500" in step["text"]
    assert answer["output"]["destination"] == "10.77.0.2"


def test_capture_with_cut_long_and_unknown_frames(served: Cluster, tmp_path: Path) -> None:
    """A frame that tcpdump -s cut, one of many segments, ARP and one from nowhere: each has its line, without --device."""
    served.serve(served.web("b1"))
    head = Ether(src="02:00:00:00:00:99", dst="02:00:00:00:00:98")
    cut = head / IP(src="10.77.0.2", dst=VIP4) / TCP(sport=48200, dport=80, flags="S") / (b"x" * 400)
    cut.wirelen = len(cut)
    raw = Ether(bytes(cut)[:90])
    raw.wirelen = len(cut)
    long = head / IP(src="10.77.0.2", dst=VIP4) / TCP(sport=48201, dport=80, flags="A") / (b"x" * 9000)
    arp = Ether(src="02:00:00:00:00:99", dst="ff:ff:ff:ff:ff:ff", type=0x0806) / (b"\0" * 46)
    stranger = head / IP(src="203.0.113.9", dst=VIP4) / TCP(sport=1, dport=80, flags="S")
    path = tmp_path / "capture"
    wrpcap(str(path), [raw, long, arp, stranger])
    done = served.agent.cli("explain", "--pcap", str(path))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["verdict"] for line in lines] == ["forward", "forward", "pass", "pass"]
    assert lines[0]["packet"]["length"] == len(cut)
    assert "no route" in lines[3]["advice"]


def test_after_a_change_of_map_sizes(fresh: Any) -> None:
    """The flow of an open connection is found in the new table: the dry programs are those of the programs in force."""
    cluster = fresh("xdp")
    config = cluster.lab.folder / "agent.yaml"
    config.write_text("flow-table-size: 1048576\n")
    cluster.agent.arguments += ["--config", str(config)]
    cluster.web("b1").write(cluster.folder)
    cluster.agent.start()
    with cluster.client.entered():
        connection = traffic.connect(VIP4, 80, source_port=48300)
    with contextlib.closing(connection):
        assert traffic.request(connection)
        before = explained(cluster, "10.77.0.2:48300", f"{VIP4}:80", flags="A")
        assert results(before)["flow"] == "hit"
        artifact = cluster.agent.api.status()["artifact"]
        config.write_text("flow-table-size: 2097152\nreject-rate: 500\n")
        cluster.agent.process.send_signal(signal.SIGHUP)
        wait_for(lambda: cluster.agent.api.status()["artifact"] != artifact, "the new settings", 60)
        with KernelMaps.open(str(cluster.lab.bpffs), create=False) as maps:
            assert maps.sizes.flow4 == 2097152
        after = explained(cluster, "10.77.0.2:48300", f"{VIP4}:80", flags="A")
        assert results(after)["flow"] == "hit"
        assert after["output"] == before["output"]
        assert traffic.request(connection)
