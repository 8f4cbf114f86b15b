"""Thousands of EndpointSlice changes per second. `python -m bench.kube.change_storm FILE` is the process that writes them.

They are written into etcd, as 2,000 PATCHes per second are more than an API server on two cores accepts; the server reads them there
and sends each to every watch, as always. One further slice, the marker, gets one more endpoint with each step: the time until its
count is in the map is the agent's lag.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.control import percentile
from bench.kube.bulk_objects import ENDPOINTS, SLICES, endpoint_address, endpoints
from bench.kube.kube_node import AgentOnNode, cpu_s, resident_mib
from bench.kube.slice_changes import ServiceMap, Watch
from bench.kube.stored import put, stored, value
from tests.kube_api.control_plane import MERGE, ControlPlane
from tests.lab.netns import wait_for
from tests.lab.topology import ROOT

KEY = "/registry/endpointslices/default/"
TICK_S = 0.02  # a transaction of etcd; all of its changes have one version
MARKER_TICKS = 5  # the marker changes each 100 ms
LOOK_S = 0.005
CATCH_UP_S = 120.0
Obj = dict[str, Any]
Seen = tuple[float, int]  # seconds, endpoints of the marker


@dataclass(frozen=True)
class Storm:
    """The results. Lags in milliseconds; memory in MiB."""

    seconds: float
    changes: int
    lag_p50_ms: float  # from the write into etcd to the map
    lag_max_ms: float
    own_p50_ms: float  # from the server's event on another watch to the map
    own_max_ms: float
    own_last_ms: float
    is_complete: bool
    before_mib: float
    after_mib: float
    agent_cpu_s: float


def plan(plane: ControlPlane, services: range, marker: int, rate: int, seconds: float) -> Obj:
    """Return the input of the writing process: two forms of each slice, every form of the marker."""
    ticks = round(seconds / TICK_S)
    slices = [stored(plane, f"{SLICES}/s{number}-a") for number in services]
    fewer = [{**obj, "endpoints": obj["endpoints"][1:]} for obj in slices]
    base, name = stored(plane, f"{SLICES}/s{marker}-a"), f"s{marker}"
    marks = [
        put(
            f"{KEY}{name}-a",
            value({**base, "endpoints": endpoints(name, [endpoint_address(marker, n) for n in range(count)])}),
        )
        for count in range(ENDPOINTS + 1, ENDPOINTS + 1 + ticks // MARKER_TICKS + 1)
    ]
    forms = [[put(KEY + obj["metadata"]["name"], value(obj)) for obj in form] for form in (fewer, slices)]
    return {"forms": forms, "marks": marks, "a_tick": round(rate * TICK_S), "first": ENDPOINTS + 1, "ticks": ticks}


def write(what: Obj) -> None:
    """Write the changes, tick by tick; print one line of JSON for each change of the marker: [time, count]."""
    server = http.client.HTTPConnection("127.0.0.1", 2379)
    first, second = what["forms"]
    at, began = 0, time.monotonic()
    for tick in range(what["ticks"]):
        operations = []
        for _ in range(what["a_tick"]):
            turn, number = divmod(at, len(first))
            operations.append((second if turn % 2 else first)[number])
            at += 1
        step = tick // MARKER_TICKS
        if tick % MARKER_TICKS == 0:
            operations[-1] = what["marks"][step]
        time.sleep(max(0.0, began + tick * TICK_S - time.monotonic()))
        sent = time.monotonic()
        server.request("POST", "/v3/kv/txn", f'{{"success": [{", ".join(operations)}]}}')
        answer = server.getresponse()
        text = answer.read()
        if answer.status != 200:
            sys.exit(f"etcd: {answer.status} {text[:300]!r}")
        if tick % MARKER_TICKS == 0:
            print(json.dumps([sent, what["first"] + step]), flush=True)
    print(json.dumps([time.monotonic(), 0]), flush=True)


class Marker:
    """Reads the marker in the map and on its own watch: when the server sent it, and when the agent had it."""

    def __init__(self, plane: ControlPlane, kernel: ServiceMap, number: int) -> None:
        """Start to read Service `number`."""
        self._kernel, self._watch = kernel, Watch(plane, f"s{number}-a")
        self._kernel.arm(f"s{number}", 0)
        self.told: list[Seen] = []
        self.mapped: list[Seen] = []

    def look(self) -> None:
        """Record the time of each new change; of several at once, the last one."""
        now, events = time.monotonic(), self._watch.read()
        if events.endswith(b"\n\r\n"):
            self._watch.forget()
            last = events.rstrip().rsplit(b"\n", 1)[-1]
            if count := last.count(b'"addresses"'):  # 0: the head of the answer
                self._note(self.told, now, count)
        self._note(self.mapped, now, self._kernel.count())

    @staticmethod
    def _note(seen: list[Seen], now: float, count: int) -> None:
        if not seen or seen[-1][1] != count:
            seen.append((now, count))

    def close(self) -> None:
        """Stop."""
        self._watch.close()


def reset(plane: ControlPlane, kernel: ServiceMap, number: int) -> None:
    """Restore the marker, and wait until the map has it."""
    name = f"s{number}"
    ready = endpoints(name, [endpoint_address(number, n) for n in range(ENDPOINTS)])
    plane.ask("PATCH", f"{SLICES}/{name}-a", {"endpoints": ready}, MERGE)
    kernel.arm(name, ENDPOINTS)
    wait_for(kernel.poll, "the marker as it was", CATCH_UP_S)


def storm(plane: ControlPlane, agent: AgentOnNode, kernel: ServiceMap, what: Obj, number: int) -> Storm:
    """Run the storm, and read the marker until the map has its last change."""
    reset(plane, kernel, number)
    path = plane.folder / "storm.json"
    path.write_text(json.dumps(what))
    before, cpu, marker = resident_mib(agent.pid), cpu_s(agent.pid), Marker(plane, kernel, number)
    argv = [sys.executable, "-m", "bench.kube.change_storm", str(path)]
    process = plane.namespace.popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    while process.poll() is None:
        marker.look()
        time.sleep(LOOK_S)
    *marks, (ended, _) = (json.loads(line) for line in process.stdout)
    process.stdout.close()
    late = time.monotonic() + CATCH_UP_S
    while marker.mapped[-1][1] != marks[-1][1] and time.monotonic() < late:
        marker.look()
        time.sleep(LOOK_S)
    marker.close()
    whole, own = _lags(marks, marker.mapped), _lags(marker.told, marker.mapped)
    return Storm(
        seconds=ended - marks[0][0], changes=what["ticks"] * what["a_tick"],
        lag_p50_ms=percentile(whole, 50), lag_max_ms=max(whole), own_p50_ms=percentile(own, 50), own_max_ms=max(own),
        own_last_ms=own[-1], is_complete=marker.mapped[-1][1] == marks[-1][1],
        before_mib=before, after_mib=agent.settled_mib(), agent_cpu_s=cpu_s(agent.pid) - cpu,
    )  # fmt: skip


def _lags(marks: Sequence[Seen], seen: Sequence[Seen]) -> list[float]:
    """Return for each change of the marker the milliseconds until it, or a later one, was read."""
    out, at = [], 0
    for when, count in marks:
        while at < len(seen) - 1 and seen[at][1] < count:
            at += 1
        out.append(max(0.0, seen[at][0] - when) * 1e3)
    return out


def record(result: Storm) -> Obj:
    """Return the record for results.json."""
    return asdict(result)


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1]).read_text()))
