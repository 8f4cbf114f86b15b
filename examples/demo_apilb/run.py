"""`sudo make demo-apilb`: kubelets reach three API servers by one address, with the agent on one host and HAProxy on another, while servers die and change.

Every line with `ok` is a check of native mode; the exit code is 1 if a check failed. HAProxy's figures are for comparison.
Real parts: the agent and its programs, `lbagent apilb`, HAProxy, TLS servers and clients, machines that lose their link. The API
servers and kubelets are the demo's own. The demo removes everything that it created, also after Ctrl-C; HAProxy's package stays
in the cache.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "examples" / "demo")]

from api_machines import MAP, PORT, SERVERS, WATCHES, KubeletProcess, Machines  # noqa: E402
from figures import Figures, figures, stranded, table, watching  # noqa: E402
from show import Show  # noqa: E402
from stage import present  # noqa: E402

from tests.lab.netns import LabError, wait_for  # noqa: E402

MORE = 60  # requests after each change
WITHIN_S = 60.0  # time-out of a wait, long enough for a busy machine
KUBELET_S = 10.0  # a kubelet's own time-out for its requests
RESTART_S = 1.0  # from the end of HAProxy to its next start, as by a container's runtime
NAMES = {"native": "native mode", "haproxy": "HAProxy"}


class Demo:
    """The chapters of the demo."""

    def __init__(self, machines: Machines, show: Show) -> None:
        self.machines, self.show = machines, show
        self.kubelets: dict[str, KubeletProcess] = {}
        self.rows: list[tuple[str, ...]] = []

    # --- what the chapters share ---

    @property
    def native(self) -> KubeletProcess:
        return self.kubelets["native"]

    def more(self) -> None:
        """Wait for more requests of each kubelet."""
        goals = {each: each.answered() + MORE for each in self.kubelets.values()}
        for kubelet, goal in goals.items():
            wait_for(lambda kubelet=kubelet, goal=goal: kubelet.answered() >= goal, "more answers", WITHIN_S)

    @contextlib.contextmanager
    def observed(self, what: str) -> Iterator[list[Figures]]:
        """Show the kubelets' figures of the block; the list then has native mode's."""
        seen: list[Figures] = []
        since = time.monotonic()
        yield seen
        self.more()
        until = time.monotonic()
        rows = []
        for host, kubelet in self.kubelets.items():
            found = figures(kubelet.records, since, until)
            seen.append(found)
            rows.append((NAMES[host], *found.cells))
            self.rows.append((f"{what}: {NAMES[host]}", *found.cells))
        self.show.block(table(rows))

    def apply(self, *servers: str) -> None:
        """Edit the list of servers and apply it on both hosts."""
        self.machines.write_config(*servers)
        self.show.say(f"servers in config.yaml: {' '.join(servers)}")
        self.show.command("lbagent apilb apply -f config.yaml --yes")
        self.show.block(self.machines.lbagent("apply", "--yes"))
        self.render()
        if self.machines.haproxy:
            self.machines.haproxy.reload()

    def render(self) -> None:
        """Write haproxy.cfg from the same file, for the second host."""
        if self.machines.haproxy:
            self.show.command("lbagent apilb render -f config.yaml --mode haproxy > haproxy.cfg")
            self.machines.haproxy.config.write_text(self.machines.lbagent("render", "--mode", "haproxy"))

    def status(self) -> None:
        self.show.command("lbagent apilb status -f config.yaml")
        self.show.block(self.machines.lbagent("status"))

    def wait_server(self, name: str, up: bool) -> float:
        """Wait until the agent reports that a server is up, or down; return the time."""
        wait_for(lambda: self.machines.server_row(name).get("up") is up, f"{name} {'up' if up else 'down'}", WITHIN_S)
        return time.monotonic()

    def claim_none_failed(self, seen: list[Figures]) -> None:
        failures = seen[0].failures
        self.show.claim(
            not failures, f"native: 0 of {seen[0].answered.total()} requests failed, in any attempt", str(failures[:3])
        )

    def claim_no_watch_lost(self, seen: list[Figures]) -> None:
        why = f"{seen[0].opened_again} did; the agent's log ends:\n{self.machines.agent.tail(8)}"
        self.show.claim(not seen[0].opened_again, "native: no watch reconnected", why)

    # --- chapters ---

    def set_up(self) -> None:
        """Everything, and a first round of requests."""
        machines, show = self.machines, self.show
        show.title("Three API servers, and two hosts that reach them by one address")
        show.block(MAP)
        machines.serve("a", "b", "c")
        machines.write_config("a", "b", "c")
        show.command("cat config.yaml")
        show.block(machines.config.read_text())
        show.command("lbagent apilb apply -f config.yaml --yes")
        show.block(machines.lbagent("apply", "--yes"))
        show.command("lbagent agent --apilb apilb.d    # on the first host")
        machines.agent.start()
        self.render()
        if machines.haproxy:
            show.command("haproxy -W -f haproxy.cfg    # on the second host")
            machines.haproxy.start()
        else:
            show.say(f"HAProxy is not shown: {machines.missing}")

    def balance(self) -> None:
        """The kubelets start."""
        hosts = ["native", *(["haproxy"] if self.machines.haproxy else [])]
        self.show.title(f"A kubelet on each host: {WATCHES} open watches, and continuous requests")
        for name in SERVERS.keys() - {"d"}:
            self.wait_server(name, True)
        self.kubelets = {host: self.machines.kubelet(host) for host in hosts}
        for kubelet in self.kubelets.values():
            wait_for(lambda each=kubelet: len(watching(each.records, time.monotonic())) == WATCHES, "watches", WITHIN_S)
        with self.observed("three servers") as seen:
            self.more()
        self.show.bars("answered to the first host by", seen[0].answered)
        self.claim_none_failed(seen)
        self.show.claim(set(seen[0].answered) == {"a", "b", "c"}, "native: every server answers", str(seen[0].answered))
        self.status()

    def killed(self) -> None:
        """A server process is killed and restarted."""
        self.show.title("The process of server a is killed, and restarted")
        with self.observed("a killed") as seen:
            self.dies("a", lambda: self.machines.kill("a"), "kill -9 kube-apiserver    # on a")
            self.machines.serve("a")
            self.wait_server("a", True)
        self.claim_only_early(seen)

    def silent(self) -> None:
        """A server's machine fails."""
        self.show.title("Server b fails: it sends no packet, not even a refusal")
        with self.observed("b silent") as seen:
            self.dies("b", lambda: self.machines.power("b", False), "")
            self.machines.power("b", True)
            self.wait_server("b", True)
        self.claim_only_early(seen)

    def dies(self, name: str, how: Callable[[], None], command: str) -> None:
        """Make a server fail; return when no watch waits for it any more."""
        had = [each for each in watching(self.native.records, time.monotonic()).values() if each == name]
        if command:
            self.show.command(command)
        died = time.monotonic()
        how()
        self.found = self.wait_server(name, False)
        self.show.say(f"native: {name} is detected as down after {self.found - died:.2f} s")
        for host, kubelet in self.kubelets.items():
            with contextlib.suppress(LabError) if host != "native" else contextlib.nullcontext():
                wait_for(lambda each=kubelet: not stranded(each.records, name, died), "watches elsewhere", 20)
        self.status()
        self.show.say(f"the {len(had)} watches that the first host had at {name} continue elsewhere")
        self.more()

    def claim_only_early(self, seen: list[Figures]) -> None:
        """Claim that requests reached the dead server only until its detection, and were answered."""
        failures, slowest_s = seen[0].failures, seen[0].slowest_s
        late = [each for each in failures if each["began"] > self.found]
        self.show.claim(
            not late,
            f"native: no attempt failed that began after the detection ({len(failures)} before)",
            str(late[:3]),
        )
        self.show.claim(
            slowest_s < KUBELET_S,
            f"native: 0 requests failed: the slowest was answered after {slowest_s:.2f} s ({KUBELET_S:g} s at most)",
        )

    def maintenance(self) -> None:
        """An operator drains a server."""
        self.show.title("Server c is drained, and added again")
        address = f"{SERVERS['c']}:{PORT}/TCP"
        with self.observed("c drained") as seen:
            self.show.lbagent(self.machines.agent, "backend", "set-state", "maintenance", address)
            since = time.monotonic()
            self.haproxy_without_c()
            self.more()
            met = [each for each in self.native.records if each.get("began", 0) > since]
            self.show.lbagent(self.machines.agent, "backend", "clear-state", address)
            if self.machines.haproxy:
                self.render()
                self.machines.haproxy.reload()
        self.claim_none_failed(seen)
        self.show.claim("c" not in {each.get("server") for each in met}, "native: no new request went to c")
        self.claim_no_watch_lost(seen)

    def haproxy_without_c(self) -> None:
        """Make HAProxy drain c too, by a file without it: HAProxy has only the file."""
        if self.machines.haproxy:
            self.show.say("HAProxy reloads its file, without c")
            path = self.machines.haproxy.config
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if SERVERS["c"] not in line))
            self.machines.haproxy.reload()

    def added(self) -> None:
        """One more server."""
        self.show.title("A server is added by an edit of the file")
        with self.observed("d added") as seen:
            self.machines.serve("d")
            self.apply("a", "b", "c", "d")
            for kubelet in self.kubelets.values():
                wait_for(
                    lambda each=kubelet: any(r.get("server") == "d" for r in each.records), "answers of d", WITHIN_S
                )
            self.status()
        self.claim_none_failed(seen)
        self.claim_no_watch_lost(seen)
        self.show.claim(seen[0].answered["d"], f"native: d answered {seen[0].answered['d']} requests")

    def agent_dies(self) -> None:
        """SIGKILL of the load balancers."""
        self.show.title("The agent is killed, and restarted; so is HAProxy")
        with self.observed("agent, HAProxy killed") as seen:
            self.show.command(f"kill -9 {self.machines.agent.pid}    # the agent; and HAProxy on the other host")
            self.machines.agent.kill()
            if self.machines.haproxy:
                self.machines.haproxy.kill()
                time.sleep(RESTART_S)
                self.machines.haproxy.start()
            self.more()
            self.machines.agent.start()
            self.show.command("lbagent agent --apilb apilb.d")
            self.more()
        self.claim_none_failed(seen)
        self.claim_no_watch_lost(seen)

    def summary(self) -> None:
        """The figures in one table."""
        self.show.title("All figures")
        self.show.block(table(self.rows))
        self.show.say(
            "tries failed: attempts of requests, which the kubelet repeats at once; longest gap: between two answers to three workers;"
            " watches again: those that reconnected; longest silence: of one of these"
        )


def play(show: Show) -> None:
    """Run the chapters."""
    with Machines() as machines:
        demo = Demo(machines, show)
        for chapter in (
            demo.set_up, demo.balance, demo.killed, demo.silent, demo.maintenance, demo.added, demo.agent_dies, demo.summary,
        ):  # fmt: skip
            chapter()


if __name__ == "__main__":
    sys.exit(present("demo-apilb", play))
