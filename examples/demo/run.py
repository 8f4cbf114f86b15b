"""`sudo make demo`: the agent balances real traffic in its own network namespaces, in about twelve seconds.

Every line with `ok` is a check; the exit code is 1 if a check failed. ATTACH=tc shows the other hook; `--shell` sets up the
namespaces and opens a shell there. The demo removes everything that it created, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

from show import Show  # noqa: E402

from lbagent.errors import LbError  # noqa: E402
from tests.lab import traffic, xdp  # noqa: E402
from tests.lab.agent import Agent  # noqa: E402
from tests.lab.netns import LabError, run, wait_for  # noqa: E402
from tests.lab.topology import Lab  # noqa: E402

WEB = ("10.96.0.10", "fd00:96::10")
DNS = ("10.96.0.53", "fd00:96::53")
REQUESTS = 300
CLIENT = "10.77.0.2:40000"
RESTING = ("10.77.1.2:8080/TCP", "[fd77:1::2]:8080/TCP")  # b1
MAP = """client 10.77.0.2 ──wan── node ──lan1── b1  10.77.1.2   fd77:1::2
                              ──lan2── b2  10.77.2.2   fd77:2::2
                              ──pod3── b3  10.244.0.2  fd44::2    (a pod of the node)"""


class Demo:
    """The chapters of the demo."""

    def __init__(self, lab: Lab, show: Show, attach: str) -> None:
        self.lab, self.show = lab, show
        self.manifests = lab.folder / "manifests"
        shutil.copytree(HERE, self.manifests, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        # a drain waits for closed connections, too, until this time is over; the default is longer than the demo
        self.agent = Agent(lab, self.manifests, attach=attach, arguments=["--timeout-closing", "1"])

    def ask_web(self, count: int = REQUESTS) -> Counter[str]:
        """Make HTTP requests, half of them over IPv6."""
        out: Counter[str] = Counter()
        for vip in WEB:
            out += traffic.spread(self.lab.client, count // 2, partial(traffic.http_get, vip, 80))
        return out

    # --- chapters ---

    def set_up(self) -> None:
        """Namespaces, servers, agent."""
        self.show.title("Namespaces, servers, the agent")
        self.show.block(MAP)
        self.lab.serve_all()
        self.agent.start()
        self.show.say(f"the agent runs in the node, attached by {self.agent.attach}, on the manifests of examples/demo")
        self.show.lbagent(self.agent, "svc", "list")

    def spread(self) -> None:
        """300 requests per protocol."""
        self.show.title(f"{REQUESTS} HTTP and {REQUESTS} DNS requests, half of each over IPv6")
        web = self.ask_web()
        self.show.bars("HTTP (random)", web)
        dns: Counter[str] = Counter()
        for vip in DNS:
            dns += traffic.spread(self.lab.client, REQUESTS // 2, partial(traffic.dns_ask, vip, 53))
        self.show.bars("DNS over UDP (maglev)", dns)
        self.show.claim(
            sum(web.values()) == sum(dns.values()) == REQUESTS, f"all {2 * REQUESTS} requests were answered"
        )
        fair = all(REQUESTS / 3 * 0.6 < n < REQUESTS / 3 * 1.4 for n in (*web.values(), *dns.values()))
        self.show.claim(fair and len(web) == len(dns) == 3, "every backend got about a third", f"{web} {dns}")

    def explain(self) -> None:
        """The way of two packets that are not sent."""
        self.show.title("Why would a packet go there? The programs answer, no packet is sent")
        self.show.lbagent(self.agent, "explain", CLIENT, f"{WEB[0]}:80")
        self.show.lbagent(self.agent, "explain", CLIENT, f"{WEB[0]}:81", "--expect", "reject_undefined_port")

    def capture(self) -> None:
        """Packets of one request, before and after the load balancer."""
        self.show.title("What do packets look like before and after? On a device with XDP, tcpdump shows neither")
        source, vip = 41_000, WEB[0]
        words = ("capture", "--client", f"10.77.0.2:{source}", "--count", "4")
        self.show.command(f"lbagent {' '.join(words)}")
        with self.agent.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            wait_for(lambda: "captured" in process.stderr.readline(), "the programs that record packets", 30)
            self.lab.client.call(traffic.http_get, vip, 80, source_port=source)
            lines = process.communicate()[0].splitlines()
        for line in lines:
            before, _, after = line.partition(" => ")
            self.show.block(f"{before}\n    => {after}")
        ways = [line.partition(" => ")[2] for line in lines]
        self.show.claim(
            any("> 10." in way and ":8080 by" in way for way in ways)
            and any(way.startswith(f"{vip}:80 > ") for way in ways),
            "a request leaves to a backend, and its answer comes from the frontend",
            str(lines),
        )

    def drain(self) -> None:
        """One backend is drained during downloads from it."""
        self.show.title("b1 is drained during downloads from it")
        wait_for(lambda: not self.flows_of_resting(), "the end of the requests' flows", 10)
        downloads: list[traffic.Download] = []
        lengths = count(30, 4)  # the downloads end one after another
        while sum(item.backend == "b1" for item in downloads) < 3:  # the backend is random
            chunks = islice(lengths, 6)
            started = [traffic.Download(self.lab.client, WEB[n % 2], 80, chunks=n, pause_ms=50) for n in chunks]
            downloads += started
            wait_for(lambda new=started: all(item.backend for item in new), "answers to the downloads")
        ours = [item for item in downloads if item.backend == "b1"]
        self.show.say(f"{len(downloads)} slow downloads run, {len(ours)} of them from b1")
        self.show.lbagent_on_terminal(self.agent, "backend", "drain", *RESTING)
        still = sum(item.running for item in ours)
        rest = self.ask_web()
        self.show.bars(f"{REQUESTS} new requests", {"b1": 0, **rest})
        self.show.claim(rest["b1"] == 0 and sum(rest.values()) == REQUESTS, "no new request went to b1")
        faults = [item.result() for item in downloads]
        self.show.claim(not still and not any(faults), "the downloads from b1 finished, every byte", str(faults))
        self.show.lbagent(self.agent, "backend", "set-state", "active", *RESTING)

    def flows_of_resting(self) -> int:
        """Return how many flows the backends have that the demo drains."""
        return sum(row["flows"] for row in self.agent.api.backends() if row["address"] in RESTING)

    def grow(self) -> None:
        """One more endpoint by editing the manifest."""
        self.show.title("A manifest edit adds a backend")
        self.lab.serve("b2", "b4", host=4)
        file = self.manifests / "web.yaml"
        text = file.read_text()
        for address in ("10.77.2.2", "fd77:2::2"):
            line = f'  - {{addresses: ["{address}"], nodeName: node-2, conditions: {{ready: true}}}}\n'
            text = text.replace(line, line + line.replace(address, address[:-1] + "4"))
        (self.manifests / ".web.yaml").write_text(text)
        (self.manifests / ".web.yaml").rename(file)  # by a rename: the agent never reads half a file
        self.show.command("vi web.yaml    # + 10.77.2.4 and fd77:2::4")
        wait_for(lambda: "10.77.2.4:8080" in self.agent.cli("backend", "list").stdout, "the new backend in the maps")
        spread = self.ask_web()
        self.show.bars(f"{REQUESTS} new requests", spread)
        self.show.claim(spread["b4"] > REQUESTS / 10, "b4 gets its share")

    def ids(self) -> dict[str, int]:
        """Return the ids of frontends and backends."""
        services: list[dict[str, Any]] = self.agent.json("svc", "list")
        out = {item["frontend"]: item["id"] for item in services}
        return out | {backend["address"]: backend["id"] for item in services for backend in item["backends"]}

    def kill(self) -> None:
        """SIGKILL and restart under load."""
        self.show.title("The agent is killed with SIGKILL during requests, and restarted")
        before = self.ids()
        asks = [partial(traffic.http_get, vip, 80) for vip in WEB] + [partial(traffic.dns_ask, vip, 53) for vip in DNS]
        assert self.agent.process is not None
        with traffic.Load(self.lab.client, asks, workers=4, pause_s=0.002) as load:
            load.wait_more(100)
            self.show.command(f"kill -9 {self.agent.process.pid}")
            self.agent.kill()
            load.wait_more(300)
            without = load.tally.total
            self.agent.start()
            load.wait_more(100)
        tally = load.tally
        self.show.say(
            f"{tally.total} requests, {without} of them before the agent was back; slowest {tally.slowest_s * 1e3:.0f} ms"
        )
        self.show.claim(not tally.failures, "0 requests failed", f"{len(tally.failures)}: {tally.failures[:3]}")
        self.show.claim(self.ids() == before, f"all {len(before)} frontends and backends have the ids they had")

    def cost(self) -> None:
        """The cost of a packet, compared with nft."""
        from bench.wire import Wire, manifest, nft_on, pinned

        self.show.title("The cost of a packet: lbagent and nft DNAT, in the same namespaces, on one CPU")
        vip = "10.96.0.99"
        wire = Wire(self.lab, vip)
        (self.manifests / "cost.yaml").write_text(manifest(vip))
        wait_for(lambda: f"{vip}:53" in self.agent.cli("svc", "list").stdout, "the measured service")
        with pinned():
            if self.agent.attach == "tc":
                xdp.attach(self.lab.node, "wan", xdp.pass_program())  # or injected frames would not be received
            ours, ours_lost = self.bursts(wire, 100_000)
            self.agent.stop()
            self.agent.cli("cleanup")
            xdp.attach(self.lab.node, "wan", xdp.pass_program())
            nft_on(self.lab, vip)
            nft, nft_lost = self.bursts(wire, 20_000)
        wire.close()
        self.show.say(
            "64 flows of 64-byte UDP packets: sent by the client, translated in the node, counted at the backend"
        )
        self.show.say(
            f"lbagent ({self.agent.attach}) {ours:.0f} ns per packet, nft {nft:.0f} ns: nft takes {nft / ours:.1f} times as long"
        )
        self.show.claim(
            ours < nft and not ours_lost and not nft_lost,
            "lbagent costs less, and neither lost a packet",
            f"lost: {ours_lost}, {nft_lost}",
        )

    @staticmethod
    def bursts(wire: Any, frames: int) -> tuple[float, int]:
        """Return the median ns per packet of some bursts, and the packets lost after the first one."""
        wire.set(64)
        wire.burst(frames)
        costs = [wire.burst(frames) for _ in range(5)]
        return statistics.median(cost for cost, _ in costs), sum(max(0, lost) for _, lost in costs)


def shell(demo: Demo) -> None:
    """Leave everything running and open a shell in the node."""
    demo.set_up()
    lab = demo.lab
    folder = Path(sys.executable).parent
    rc = lab.folder / "rc"
    rc.write_text(
        f"""export PATH={folder}:$PATH LBAGENT_SOCKET={lab.socket} LBAGENT_BPFFS={lab.bpffs} PS1='(lbagent node) \\w # '
client() {{ nsenter --net={lab.client.path} -- "$@"; }}
ask() {{ client {sys.executable} -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode(), end="")' "$@"; }}
cd {demo.manifests}
"""
    )
    demo.show.title("A shell in the node. `exit` removes everything")
    demo.show.block(
        """ask http://10.96.0.10/                 one request from the client (ask 'http://[fd00:96::10]/')
for i in $(seq 12); do ask http://10.96.0.10/; done
lbagent svc get demo/web               the service in full
lbagent backend set-state maintenance 10.77.1.2:8080
lbagent map dump                       the entries of the maps
lbagent status                         devices, sources, problems
lbagent metrics | grep packets_total   verdicts on packets, and their reasons
vi web.yaml                            save it, then: lbagent svc list
client ip route                        any command on the client's side"""
    )
    subprocess.run(lab.node.command(["bash", "--rcfile", str(rc), "-i"]), check=False)


def arguments() -> argparse.Namespace:
    """Read the command line; ATTACH is an environment variable so that `make` can pass it on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attach", choices=("xdp", "tc"), default=os.environ.get("ATTACH", "xdp"))
    parser.add_argument("--shell", action="store_true", help="set up the namespaces and open a shell there")
    return parser.parse_args()


def main() -> int:
    """Run the chapters."""
    options, show = arguments(), Show()
    sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show the bars shows question marks
    if os.geteuid() != 0:
        print(
            "the demo creates network namespaces and loads BPF programs, which needs root: sudo make demo",
            file=sys.stderr,
        )
        return 1
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # also when a shell ignores SIGINT in the background
        signal.signal(number, signal.default_int_handler)
    try:
        with Lab() as lab:
            demo = Demo(lab, show, options.attach)
            if options.shell:
                shell(demo)
            else:
                for chapter in (
                    demo.set_up,
                    demo.spread,
                    demo.explain,
                    demo.capture,
                    demo.drain,
                    demo.grow,
                    demo.kill,
                    demo.cost,
                ):
                    chapter()
    except KeyboardInterrupt:
        print("\nstopped; everything is removed", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `make demo | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (LabError, LbError, OSError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    if options.shell:
        return 0
    left = [name for name in run("ip", "netns", "list").split() if name.startswith(f"lbx{os.getpid()}-")]
    show.title("Clean-up")
    show.claim(
        not left and not lab.folder.exists(), "no namespace, no pin, no process, no file is left", " ".join(left)
    )
    for text in show.untrue:
        print(f"not true: {text}", file=sys.stderr)
    return 1 if show.untrue else 0


if __name__ == "__main__":
    sys.exit(main())
