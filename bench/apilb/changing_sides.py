"""The two load balancers during connections, and one cycle of changes of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.apilb.bench_host import HAPROXY_PORT, NATIVE_PORT, BenchHost
from bench.apilb.reloaded_haproxy import ReloadedHaproxy
from tests.lab.api_hosts import PORT, ipv4
from tests.lab.netns import wait_for

PATIENCE_S = 120.0  # a start of the agent, on a machine with much other work
CHECK = {"interval": "1s", "timeout": "10s", "fall": 3, "rise": 2}


class Change(NamedTuple):
    """A change, and the servers in the pool after it."""

    what: str
    make: Callable[[str], None]
    servers: str = "abc"


def places(names: str) -> list[str]:
    """Return where servers are: `ab`."""
    return [f"{ipv4(name)}:{PORT}" for name in names]


class NativeSide:
    """The agent, its pool files, and the changes of both."""

    name, port = "native", NATIVE_PORT

    def __init__(self, host: BenchHost) -> None:
        self.host = host
        self._file("abc")
        host.agent.start()
        host.wait_up("abc")

    def changes(self) -> tuple[Change, ...]:
        """Return one cycle."""
        return (
            Change("server removed", self._edit, "bc"),
            Change("agent ended by SIGTERM, started", self._restart, "bc"),
            Change("server added", self._edit),
            Change("servers removed and added", self._edit, "ab"),
            Change("servers removed and added", self._edit, "c"),
            Change("agent killed, file edited, agent started", self._edit_while_killed, "ac"),
            Change("server added", self._edit),
            Change("another pool added", self._add_other),
            Change("bad file", self._write_bad),
            Change("agent killed, started", self._kill),
            Change("another pool removed", self._remove_other),
            Change("checks edited", self._edit_checks),
            Change("server in maintenance", self._drain, "ac"),
            Change("agent killed, started", self._kill, "ac"),
            Change("server out of maintenance", self._drain_no_more),
        )

    def _file(self, names: str, **check: str) -> None:
        self.host.pool(servers=places(names), bind=f"127.0.0.1:{NATIVE_PORT}", check=CHECK | check)

    def _edit(self, names: str) -> None:
        self._file(names)
        self._wait(names)

    def _wait(self, names: str) -> None:
        expected = sorted(f"{place}/TCP" for place in places(names))

        def is_served() -> bool:
            rows = [row for row in self.host.agent.api.services() if row["name"] == "lb"]
            return [sorted(each["address"] for each in row["backends"]) for row in rows] == [expected]

        wait_for(is_served, f"servers {names} served", PATIENCE_S)

    def _restart(self, _names: str) -> None:
        self.host.agent.stop()
        self.host.agent.start()

    def _kill(self, _names: str) -> None:
        self.host.agent.kill()
        self.host.agent.start()

    def _edit_while_killed(self, names: str) -> None:
        self.host.agent.kill()
        self._file(names)
        self.host.agent.start()
        self._wait(names)

    def _add_other(self, _names: str) -> None:
        self.host.pool("other", servers=places("ab"), bind=f"127.0.0.1:{NATIVE_PORT + 1}", check=CHECK)
        self._wait_pools(2)

    def _remove_other(self, names: str) -> None:
        self._file(names)  # good again
        (self.host.pools / "other.yaml").unlink()
        self._wait_pools(1)

    def _wait_pools(self, count: int) -> None:
        wait_for(lambda: len(self.host.agent.api.services()) == count, f"{count} pools", PATIENCE_S)

    def _write_bad(self, _names: str) -> None:
        (self.host.pools / "lb.yaml").write_text("{ bad")
        wait_for(lambda: "lb.yaml" in str(self.host.agent.api.status()["sources"]), "the bad file named", PATIENCE_S)

    def _edit_checks(self, names: str) -> None:
        before = self._asked_ready()
        self._file(names, path="/readyz")
        wait_for(lambda: self._asked_ready() > before, "a check by the new path", PATIENCE_S)

    def _asked_ready(self) -> int:
        return (self.host.folder / "a.asked").read_text().count("GET /readyz")

    def _drain(self, _names: str) -> None:
        self.host.agent.cli("backend", "set-state", "maintenance", f"{places('b')[0]}/TCP")

    def _drain_no_more(self, _names: str) -> None:
        self.host.agent.cli("backend", "clear-state", f"{places('b')[0]}/TCP")


class HaproxySide:
    """HAProxy with the rendered file, and the changes of both."""

    name, port = "HAProxy", HAPROXY_PORT

    def __init__(self, host: BenchHost) -> None:
        self.host = host
        self.haproxy = ReloadedHaproxy(host, host.rendered(places("abc"), check=CHECK))

    def changes(self) -> tuple[Change, ...]:
        """Return one cycle."""
        return (
            Change("server removed", self._edit, "bc"),
            Change("server added", self._edit),
            Change("servers removed and added", self._edit, "ab"),
            Change("servers removed and added", self._edit, "c"),
            Change("server added", self._edit),
            Change("bad file", self._write_bad),
            Change("checks edited", self._edit_checks),
            Change("server removed", self._edit, "ac"),
            Change("reloaded without a change", self._reload, "ac"),
            Change("server added", self._edit),
        )

    def _edit(self, names: str) -> None:
        self.haproxy.write(self.host.rendered(places(names), check=CHECK))
        self.haproxy.reload()

    def _edit_checks(self, names: str) -> None:
        self.haproxy.write(self.host.rendered(places(names), check=CHECK | {"path": "/readyz"}))
        self.haproxy.reload()

    def _write_bad(self, _names: str) -> None:
        self.haproxy.write("bad\n")
        self.haproxy.refuse()

    def _reload(self, _names: str) -> None:
        self.haproxy.reload()


Side = NativeSide | HaproxySide
