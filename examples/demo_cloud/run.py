"""`sudo make demo-cloud`: Services of type LoadBalancer get addresses, are announced by ARP, BGP and UPnP, and keep working while nodes and agents end.

Every line with `ok` is a check; the exit code is 1 if a check failed. Real parts: kube-apiserver, etcd and the EndpointSlice
controller, `lbagent cloud run`, the agents and their programs, BIRD on both sides, miniupnpd, HTTP servers and clients. The
kubelets are the demo's own. The demo removes everything that it created, also after Ctrl-C; the programs built from Go
modules stay in the cache.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "examples" / "demo")]

from machines import LB_CLASS, MAP, POOLS, Machines  # noqa: E402
from show import Show  # noqa: E402
from stage import present  # noqa: E402
from watched import WORKERS, WatchedClient  # noqa: E402

from tests.kube_api.announcing_nodes import Host  # noqa: E402
from tests.kube_api.cluster import HOME, SLICES  # noqa: E402
from tests.kube_api.control_plane import MERGE, Refused  # noqa: E402
from tests.kube_api.programs import BuildFailed, Missing, build_programs  # noqa: E402
from tests.lab import traffic  # noqa: E402
from tests.lab.netns import Namespace, run, wait_for  # noqa: E402
from tests.lab.router import OUTSIDE, WAN  # noqa: E402

REQUESTS = 200
MORE = 300  # requests before and after each change
WITHIN_S = 60.0  # time-out of a wait, long enough for a busy machine
LAN_GAP_S, BGP_GAP_S, POD_GAP_S = 5.0, 3.0, 5.0  # bounds; the times themselves are printed
LOST_S = 0.4  # time-out of a request when a node dies: shorter than TCP's first retransmission


class Demo:
    """The chapters of the demo."""

    def __init__(self, machines: Machines, show: Show) -> None:
        self.machines, self.show = machines, show
        self.cluster = machines.cluster

    # --- what the chapters share ---

    def create(self, name: str, says: str, **fields: Any) -> str:
        """Create a Service of type LoadBalancer; wait for its address and return it."""
        self.show.command(f"kubectl create -f {name}.yaml    # {says}")
        start = time.monotonic()
        self.cluster.add_service(name, type="LoadBalancer", **fields)
        (entry,) = wait_for(lambda: self.ingress(name), f"an address of {name}", WITHIN_S)
        self.show.say(f"{name} has the address {entry['ip']} after {time.monotonic() - start:.2f} s")
        return str(entry["ip"])

    def ingress(self, name: str) -> list[dict[str, Any]]:
        found = self.cluster.plane.ask("GET", f"{HOME}/services/{name}")
        return list(found["status"]["loadBalancer"].get("ingress", []))

    def until_answered(self, client: Namespace, vip: str) -> float:
        """Send a request every 0.2 s until one is answered; return the time in seconds."""

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return bool(client.call(traffic.http_get, vip, 80, timeout_s=0.2))
            return False

        start = time.monotonic()
        wait_for(answers, f"an answer from {vip}", WITHIN_S)
        return time.monotonic() - start

    def ask_all(self, client: Namespace, vip: str, who: str) -> None:
        """Make requests in sequence; claim that the Pods answered all of them."""
        answered = traffic.spread(client, REQUESTS, partial(traffic.http_get, vip, 80))
        self.show.bars(f"{REQUESTS} requests from {who}", answered)
        self.show.claim(
            sum(answered.values()) == REQUESTS and len(answered) == 2, "every request was answered, by both Pods"
        )

    def leader(self) -> Host:
        """Return the node that announces the address of web by ARP."""
        return self.machines.link.until_led(self.web)

    @contextlib.contextmanager
    def under_load(self, timeout_s: float = traffic.TIMEOUT_S) -> Iterator[tuple[WatchedClient, WatchedClient]]:
        """Make requests during the block, from the laptop to web and from the branch to shop."""
        laptop = WatchedClient("laptop, by ARP", self.machines.laptop, self.web, timeout_s)
        branch = WatchedClient("branch, by BGP", self.machines.branch, self.shop, timeout_s)
        with laptop, branch:
            both = (laptop, branch)
            for client in both:
                client.load.wait_more(MORE)
            yield both
            for client in both:
                client.load.wait_more(MORE)
        for client in both:
            self.show.say(client.summary)

    def claim_none_failed(self, *clients: WatchedClient) -> None:
        for client in clients:
            tally = client.load.tally
            self.show.claim(
                not tally.failures, f"0 of {tally.total} requests failed ({client.name})", str(tally.failures[:3])
            )

    def claim_no_gap(self, *clients: WatchedClient) -> None:
        """Claim that no packet was lost: a gap shorter than a time-out fails no request, but causes repeated SYNs."""
        for client in clients:
            again = client.load.tally.syns_again
            self.show.claim(not again, f"there was no gap: no SYN was repeated ({client.name})", f"{again} were")

    def show_routes(self) -> None:
        self.show.command("ip route show proto bird    # on the router")
        self.show.block(run("ip", "-n", self.machines.router.space.name, "route", "show", "proto", "bird"))

    def ways(self) -> list[str]:
        """Return the nodes' addresses that are next hops of the router's route to shop."""
        return self.machines.router.routes().get(self.shop, [])

    # --- chapters ---

    def set_up(self) -> None:
        """Everything but Services."""
        self.show.title("Two nodes on a LAN, a BGP router, and a node at home")
        self.show.block(MAP)
        self.machines.start()
        self.show.command("lbagent cloud run --provider pool --config pools.yaml --kubeconfig FILE")
        self.show.command(f"lbagent cloud run --provider edge --lb-class {LB_CLASS} --kubeconfig FILE    # at home")
        self.show.command("lbagent agent --announce pools.yaml --kubeconfig FILE \\")
        self.show.command("  --node-liveness udp --liveness-key-file KEY ...    # on both nodes")
        self.show.say("pools.yaml:")
        self.show.block(POOLS)

    def pool(self) -> None:
        """An address of the pool, announced by ARP."""
        self.show.title("A Service gets an address of the LAN, for which one node answers")
        self.web = self.create("web", "type: LoadBalancer, without annotations")
        took = self.until_answered(self.machines.laptop, self.web)
        self.show.say(f"the laptop has an answer {took:.2f} s later")
        self.show.claim(self.web == "10.8.0.100", "it is the lowest free one of the pool lan", self.web)
        self.ask_all(self.machines.laptop, self.web, "the laptop")
        leader = self.leader()
        self.show.command(f"ip neigh show {self.web}    # on the laptop")
        self.show.block(run("ip", "-n", self.machines.laptop.name, "neigh", "show", self.web))
        self.show.claim(
            self.machines.link.mac_of(self.web) == leader.node.mac("eth0").hex(":"),
            f"that is the MAC address of {leader.name}, which has the Lease",
        )
        self.show.say(f"on {self.machines.other(leader).name}:")
        self.show.lbagent(self.machines.other(leader).agent, "vip", "list")

    def bgp(self) -> None:
        """An address in no network, announced by BGP."""
        self.show.title("A Service gets an address that BGP announces to a router")
        annotation = {"lbagent.io/address-pool": "public"}
        self.shop = self.create("shop", "annotation lbagent.io/address-pool: public", annotations=annotation)
        both = [host.address for host in self.machines.hosts]
        wait_for(lambda: self.ways() == both, "routes through both nodes", WITHIN_S)
        took = self.until_answered(self.machines.branch, self.shop)
        self.show.say(f"the branch has an answer {took:.2f} s after the routes")
        self.show_routes()
        self.show.claim(self.ways() == both, "the router has a next hop for each node")
        self.show.say("on node-1:")
        self.show.lbagent(self.machines.hosts[0].agent, "bgp", "peers")
        self.ask_all(self.machines.branch, self.shop, "the branch, behind the router")

    def home(self) -> None:
        """A port mapping of the home router."""
        self.show.title("At home: a Service is reached from outside the router, by UPnP")
        outside = self.machines.home_router.outside
        self.show.claim(_refused(outside), f"before: {WAN}:80 refuses connections")
        wan = self.create(
            "media", "annotation midokura.com/load-balancer-type: upnp-igd",
            annotations={"midokura.com/load-balancer-type": "upnp-igd"},
            loadBalancerClass=LB_CLASS, externalTrafficPolicy="Local",
        )  # fmt: skip
        self.show.claim(wan == WAN, "that is the WAN address of the router", wan)
        self.until_answered(outside, wan)
        self.show.command(f"curl http://{wan}/    # outside")
        answer = outside.call(traffic.http_get, wan, 80)
        self.show.block(f"{answer.backend} {answer.client}")
        self.show.claim(
            answer == traffic.Answer("home", OUTSIDE), "the Pod at home answered, and got the client's own address"
        )

    def agent_dies(self) -> None:
        """SIGKILL of the agent that announces."""
        leader = self.leader()
        self.show.title(f"The agent of {leader.name} is killed with SIGKILL, and restarted")
        with self.under_load() as clients:
            self.show.command(f"kill -9 {leader.agent.pid}")
            leader.agent.kill()
            for client in clients:
                client.load.wait_more(MORE)
            self.show.say(f"{sum(client.load.tally.total for client in clients)} requests so far; the agent starts")
            leader.agent.start()
            self.machines.link.until_led(self.web)
        self.claim_none_failed(*clients)
        self.claim_no_gap(*clients)
        self.show.claim(self.leader() is leader, f"{leader.name} announces the address as before")

    def cordon(self) -> None:
        """Maintenance of the node that announces."""
        leader = self.leader()
        heir = self.machines.other(leader)
        self.show.title(f"{leader.name} is cordoned, and uncordoned")
        with self.under_load() as clients:
            self._set_cordon(leader, True)
            self.machines.link.until_led(self.web, by=heir)
            wait_for(lambda: self.ways() == [heir.address], "the end of the route", WITHIN_S)
            self.show.say(f"{heir.name} announces {self.web}, and the router has one next hop to {self.shop}")
            for client in clients:
                client.load.wait_more(MORE)
            self._set_cordon(leader, False)
            self.machines.link.until_led(self.web, by=leader)
            wait_for(lambda: len(self.ways()) == 2, "the route", WITHIN_S)
        laptop, branch = clients
        self.claim_none_failed(laptop)
        moved = len(branch.load.tally.failures)
        self.show.claim(
            moved <= 2 * WORKERS,
            f"{moved} of the branch: at most those under way ({WORKERS} at a time) when the router changed its next hops, twice",
            str(branch.load.tally.failures[:3]),
        )

    def _set_cordon(self, host: Host, on: bool) -> None:
        self.show.command(f"kubectl {'cordon' if on else 'uncordon'} {host.name}")
        patch = {"spec": {"unschedulable": on or None}}
        self.cluster.plane.ask("PATCH", f"/api/v1/nodes/{host.name}", patch, MERGE)

    def node_dies(self) -> None:
        """The node that announces fails, and with it a Pod of api, whose endpoint stays in the API."""
        self.api = self.create("api", "a Pod on each of the two nodes")
        self.ask_all(self.machines.laptop, self.api, "the laptop")
        leader = self.leader()
        heir = self.machines.other(leader)
        self.show.title(f"{leader.name} fails during requests")
        pods = WatchedClient("laptop, to api", self.machines.laptop, self.api, LOST_S)
        with pods, self.under_load(LOST_S) as (laptop, branch):
            died = time.monotonic()
            leader.power_off()
            self.show.say(f"{leader.name} is down: no link, no process, no message to other nodes")
            self.machines.link.until_led(self.web, by=heir)
            wait_for(lambda: self.ways() == [heir.address], "the end of the route", WITHIN_S)
        gap, failing = laptop.longest_gap_s, branch.failing_s(died)
        self.show.claim(
            gap < LAN_GAP_S, f"the laptop waited {gap:.2f} s for {heir.name} to take over ({LAN_GAP_S:g} s at most)"
        )
        self.show.claim(
            failing < BGP_GAP_S,
            f"from {failing:.2f} s on no request of the branch failed: the router sends all to {heir.name} ({BGP_GAP_S:g} s at most)",
        )
        late = pods.failing_s(died)
        self.show.claim(
            late < POD_GAP_S,
            f"from {late:.2f} s on no connection went to the Pod of api on {leader.name} ({POD_GAP_S:g} s at most)",
        )
        slices = self.cluster.plane.ask("GET", f"{SLICES}?labelSelector=kubernetes.io/service-name=api")["items"]
        ready = [each["nodeName"] for one in slices for each in one["endpoints"] if each["conditions"]["ready"]]
        self.show.claim(
            leader.name in ready, "its endpoint is still ready in the API: no kubelet has reported anything", str(ready)
        )
        self.show.command("lbagent status")
        self.show.block(
            "\n".join(line for line in heir.agent.cli("status", check=False).stdout.splitlines() if "dead" in line)
        )
        self.show_routes()
        self.show.claim(self.ways() == [heir.address], f"the only next hop is {heir.name}")
        self.show.say(f"on {heir.name}:")
        self.show.lbagent(heir.agent, "vip", "list")
        self.ask_all(self.machines.laptop, self.web, "the laptop")
        self.ask_all(self.machines.branch, self.shop, "the branch")


def _refused(outside: Namespace) -> bool:
    try:
        outside.call(traffic.http_get, WAN, 80, timeout_s=2.0)
    except OSError:
        return True
    return False


def play(show: Show) -> None:
    """Run the chapters."""
    programs = build_programs(print)
    with Machines(programs) as machines:
        demo = Demo(machines, show)
        for chapter in (demo.set_up, demo.pool, demo.bgp, demo.home, demo.agent_dies, demo.cordon, demo.node_dies):
            chapter()


if __name__ == "__main__":
    sys.exit(present("demo-cloud", play, Missing, BuildFailed, Refused))
