"""`lbagent history` names the file, the object or the operator behind each generation, also after the agent was killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.lab.netns import wait_for

B1 = "10.77.1.2:8080/TCP"
KEYS = ["generation", "time", "cause", "added", "changed", "removed", "writes", "duration_ms", "frontends"]
Fresh = Callable[..., Cluster]


def newest(made: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = made.agent.json("history", "-n", "1")[0]
    return found


@pytest.mark.parametrize("renderer", ["bpf", "nftables"])
def test_history(fresh: Fresh, renderer: str) -> None:
    made = fresh("tc", "--renderer", renderer)
    made.web().write(made.folder)
    made.agent.start()
    first = made.agent.json("history")
    assert [list(row) for row in first] == [KEYS]
    assert (first[0]["cause"], first[0]["added"], first[0]["removed"]) == ("start of the agent", 2, 0)
    assert first[0]["writes"] > 0

    made.serve(made.dns("b1"))
    row = newest(made)
    assert row["cause"].startswith(f"{made.folder}/dns.yaml:1 Service e2e/dns, EndpointSlice e2e/dns-"), row["cause"]
    assert (row["added"], row["changed"], row["removed"]) == (2, 0, 0)
    assert sorted(row["frontends"]) == ["10.96.0.53:53/UDP", "[fd00:96::53]:53/UDP"]

    made.serve(made.web("b2"))
    row = newest(made)
    assert (row["added"], row["changed"], row["removed"]) == (0, 2, 0)
    assert sorted(row["frontends"]) == [f"{VIP4}:80/TCP", f"[{VIP6}]:80/TCP"]
    assert "Service" not in row["cause"], "an object that did not change is no cause"
    made.serve(made.web("b1", "b2"))

    made.agent.cli("backend", "set-state", "maintenance", B1)
    assert newest(made)["cause"] == f"set-state {B1} maintenance"
    made.agent.cli("backend", "clear-state", B1)
    assert newest(made)["cause"] == f"clear-state {B1}"

    (made.folder / "dns.yaml").unlink()
    wait_for(lambda: newest(made)["removed"] == 2, "the generation without dns")
    assert "Service e2e/dns deleted" in newest(made)["cause"]

    before = made.agent.json("history", "-n", "0")
    assert [row["generation"] for row in before] == list(range(len(before), 0, -1))
    assert newest(made)["generation"] == made.agent.api.status()["generation"]
    kept = made.lab.folder / "state" / "history.jsonl"
    wait_for(lambda: kept.read_bytes().count(b"\n") == len(before), "every generation in the file")
    made.agent.kill()
    made.agent.start()
    after = made.agent.json("history", "-n", "0")
    assert after[1:] == before
    assert after[0]["cause"] == "start of the agent"

    lines = made.agent.cli("history", "-n", "3").stdout.splitlines()
    assert lines[0].split() == [
        "GENERATION",
        "TIME",
        "CAUSE",
        "ADDED",
        "CHANGED",
        "REMOVED",
        "WRITES",
        "MS",
        "FRONTENDS",
    ]
    assert len(lines) == 4
