"""1,000 Services at once: the time until every address answers, the writes for it, and the writes afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from bench.cloud.stage import SERVICES, BenchPlane, Lan, Obj, backends, service
from bench.kube.bulk_objects import AT_ONCE, _writer, run_in
from tests.lab.netns import run, wait_for
from tests.lab.topology import ROOT, LabError

NAME = "many-"
PORT, BATCH, ASK_S = 80, 64, 0.3
MOST_NEIGHBOURS = 400  # the kernel has 1,024, for all namespaces together
WITHIN_S, PEACE_S, QUIET_S = 300.0, 20.0, 3.0


class System(Protocol):
    """A system that assigns addresses and announces them on a LAN."""

    name: str
    lan: Lan

    def controller_mib(self) -> float:
        """Return the controller's resident memory."""

    def is_controller(self, user: str) -> bool:
        """Return whether an account is the controller's."""

    def is_node(self, user: str) -> bool:
        """Return whether an account is the nodes'."""


def measure(system: System, addresses: Sequence[str], *, peace_s: float = PEACE_S) -> dict[str, Any]:
    """Create a Service for each address, and wait until each address answers."""
    plane, count = system.lan.plane, len(addresses)
    names = [f"{NAME}{number}" for number in range(count)]
    post(system.lan, [each for number, name in enumerate(names) for each in backends(name, number)])
    _until_quiet(plane)
    before, began = sum(1 for _ in plane.writes()), time.monotonic()
    client = system.lan.client.popen(
        [sys.executable, "-m", "bench.cloud.many", *_ranges(addresses)], stdout=-1, cwd=ROOT
    )
    post(system.lan, [(SERVICES, service(name)) for name in names])
    made_s = time.monotonic() - began
    assert client.stdout is not None
    text, _ = client.communicate(timeout=WITHIN_S)
    if client.returncode:
        raise LabError(f"{text.strip()} of {count} addresses answered within {WITHIN_S:g} s")
    out: dict[str, Any] = {"services": count, "made_s": made_s, "all_s": float(text) - began}
    wait_for(lambda: _addressed(system.lan) == count, "the status of each Service", 30)
    _until_quiet(plane)
    written = [entry for entry in list(plane.writes())[before:] if not _is_renewal(entry)]
    out["controller_writes"] = sum(system.is_controller(_user(entry)) for entry in written) / count
    out["node_writes"] = sum(system.is_node(_user(entry)) for entry in written) / count
    out["controller_mib"] = system.controller_mib()
    out["kinds"] = dict(Counter(f"{_user(each)} {each['verb']} {_resource(each)}" for each in written))
    out |= _peace(system, peace_s)
    return out


def post(lan: Lan, objects: Sequence[tuple[str, Obj]]) -> None:
    """Create objects, many at a time."""
    left = iter(objects)

    async def work() -> None:
        async with _writer(lan.plane) as writer:

            async def some() -> None:
                for path, obj in left:
                    await writer.send("POST", path, obj)

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(some())

    run_in(lan.plane, work())


def remove(lan: Lan) -> None:
    """Delete the Services, with their addresses."""
    for name in [each["metadata"]["name"] for each in lan.plane.ask("GET", SERVICES)["items"]]:
        if name.startswith(NAME):
            lan.plane.send("DELETE", f"{SERVICES}/{name}")
            for path, obj in backends(name, 0):
                lan.plane.send("DELETE", f"{path}/{obj['metadata']['name']}")


def restart(system: Any, seconds: float) -> int:
    """Kill the controller and restart it; return its writes until it serves a new Service, without those for this Service."""
    plane, name = system.lan.plane, "after"
    before = sum(1 for _ in plane.writes())
    system.restart_controller()
    time.sleep(seconds)
    written = [entry for entry in list(plane.writes())[before:] if system.is_controller(_user(entry))]
    plane.ask("POST", SERVICES, service(name, **{"lbagent.io/address-pool": "none"}))
    path = "/api/v1/namespaces/default/events"
    wait_for(
        lambda: any(each["involvedObject"].get("name") == name for each in plane.ask("GET", path)["items"]),
        "an Event",
        60,
    )
    plane.ask("DELETE", f"{SERVICES}/{name}")
    return len(written)


def _peace(system: System, seconds: float) -> dict[str, float]:
    """Return the writes per second of a node and of the controller when they are idle."""
    plane = system.lan.plane
    before, began = sum(1 for _ in plane.writes()), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    entries = list(plane.writes())[before:]
    nodes: dict[str, list[float]] = {}
    for entry in entries:
        if system.is_node(_user(entry)):
            nodes.setdefault(entry["objectRef"]["name"], []).append(_at(entry))
    rates = [(len(at) - 1) / (at[-1] - at[0]) for at in nodes.values() if len(at) > 1]
    rest = sum(system.is_controller(_user(entry)) for entry in entries)
    return {"node_writes_a_s": max(rates, default=0.0), "controller_writes_a_s": rest / took}


def _until_quiet(plane: BenchPlane) -> None:
    """Wait until only renewals are written: Events come late."""
    count, deadline = -1, time.monotonic() + WITHIN_S
    while (now := sum(not _is_renewal(entry) for entry in plane.writes())) != count and time.monotonic() < deadline:
        count = now
        time.sleep(QUIET_S)


def _addressed(lan: Lan) -> int:
    found = lan.plane.ask("GET", SERVICES)["items"]
    return sum(1 for each in found if each["status"].get("loadBalancer", {}).get("ingress"))


def _is_renewal(entry: Obj) -> bool:
    return str((entry.get("objectRef") or {}).get("name", "")).startswith(
        ("lbagent-node-", "lbagent-cloud", "apiserver-")
    )


def _user(entry: Obj) -> str:
    return str(entry["user"]["username"])


def _resource(entry: Obj) -> str:
    ref = entry.get("objectRef") or {}
    return "/".join(filter(None, (ref.get("resource", ""), ref.get("subresource", ""))))


def _at(entry: Obj) -> float:
    return datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()


# --- the client's process ---


def expand(ranges: Iterable[str]) -> list[str]:
    """Return the addresses of ranges A.B.C.D-A.B.C.E."""
    out = []
    for text in ranges:
        first, last = text.split("-")
        head, _, low = first.rpartition(".")
        out += [f"{head}.{number}" for number in range(int(low), int(last.rpartition(".")[2]) + 1)]
    return out


def _ranges(addresses: Sequence[str]) -> list[str]:
    heads: dict[str, list[int]] = {}
    for address in addresses:
        head, _, low = address.rpartition(".")
        heads.setdefault(head, []).append(int(low))
    return [f"{head}.{min(low)}-{head}.{max(low)}" for head, low in heads.items()]


def ask_all(addresses: Sequence[str], deadline: float) -> tuple[int, float]:
    """Connect to each until all have answered; return how many did, and the time of the last answer."""
    left, at, known = list(addresses), 0.0, 0
    while left and time.monotonic() < deadline:
        answered = set(_ask(left[:BATCH]))
        if answered:
            at = time.monotonic()
        left = [address for address in left if address not in answered]
        rest = [address for address in left[:BATCH] if address not in answered]
        left = [*left[len(rest) :], *rest]
        known += BATCH
        if known > MOST_NEIGHBOURS:
            run("ip", "neigh", "flush", "dev", "eth0")
            known = 0
    return len(addresses) - len(left), at


def _ask(addresses: Sequence[str]) -> Iterator[str]:
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as closing:
        for address in addresses:
            sock = closing.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.connect_ex((address, PORT))
                selector.register(sock, selectors.EVENT_READ, address)
        deadline = time.monotonic() + ASK_S
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                with contextlib.suppress(OSError):
                    if key.fileobj.recv(16):  # type: ignore[union-attr]
                        yield key.data


def main(words: Sequence[str]) -> int:
    """Connect to the addresses of these ranges; print the time of the last answer, or how many answered."""
    addresses = expand(words)
    count, at = ask_all(addresses, time.monotonic() + WITHIN_S - 10)
    print(at if count == len(addresses) else count)
    return count != len(addresses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
