"""The page's requests over real packets: the numbers are those of the requests that were made."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.e2e.cluster import Cluster

Fresh = Callable[..., Cluster]
FRONTEND = "10.96.0.53:53/UDP"
PORT = 9100


def asked(made: Cluster, path: str) -> tuple[int, bytes]:
    """Ask at the metrics port, in the node's namespace."""
    with made.lab.node.entered():
        connection = HTTPConnection("127.0.0.1", PORT, timeout=10)
        connection.connect()
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def row(rows: list[dict[str, Any]], key: str, value: str) -> dict[str, Any]:
    return next(each for each in rows if each[key] == value)


@pytest.mark.parametrize("renderer", ["bpf", "nftables"])
def test_summary(fresh: Fresh, renderer: str) -> None:
    made = fresh("tc", "--renderer", renderer, "--metrics-address", f"127.0.0.1:{PORT}", "--ui")
    dns = made.dns("b1")
    dns.write(made.folder)
    made.agent.start()
    assert made.ask_dns(10, vips=("10.96.0.53",)) == {"b1": 10}
    status, text = asked(made, "/v1/summary")
    found = json.loads(text)
    assert (status, found["ready"]) == (200, True)
    assert found["changes"][0]["cause"] == "start of the agent"
    service = row(found["services"], "frontend", FRONTEND)
    assert (service["service"], service["selectable"], service["backends"]) == ("e2e/dns", 1, 1)
    assert asked(made, "/")[1].startswith(b"<!doctype html>")
    assert asked(made, "/v1/status")[0] == 404
    if renderer == "bpf":
        (address,) = {each["backend"] for each in found["backends"] if each["backend"].startswith("10.")}
        assert service["packets"] == 20, "ten questions and their answers"
        assert service["new_flows"] == 10
        assert row(found["backends"], "backend", address)["packets"] == 20
        made.agent.api.backends()  # counts the flows
        again = row(json.loads(asked(made, "/v1/summary")[1])["services"], "frontend", FRONTEND)
        assert again["flows"] == 10, "no other frontend has its backend"
        counted = {each["reason"]: each["packets"] for each in found["reasons"]}
        assert (counted["fwd_new"], counted["fwd_reply"]) == (10, 10)


def test_top_counts_real_requests_and_changes_nothing(fresh: Fresh) -> None:
    """Rates times the interval are the packets that were sent, and the maps are as before."""
    made = fresh("tc")
    made.dns("b1").write(made.folder)
    made.agent.start()
    before = made.agent.dump()
    printed: list[str] = []
    words = ("top", "--batch", "-n", "1", "--interval", "10", "-o", "json")
    running = threading.Thread(target=lambda: printed.append(made.agent.cli(*words).stdout))
    running.start()
    time.sleep(3)  # its first numbers are read
    assert made.ask_dns(10, vips=("10.96.0.53",)) == {"b1": 10}
    running.join()
    found = json.loads(printed[0])
    service = row(found["services"], "frontend", FRONTEND)
    assert service == found["services"][0], "the busiest one is first"
    assert service["pps"] * found["interval_s"] == pytest.approx(20, abs=0.3)
    assert service["new_flows_ps"] * found["interval_s"] == pytest.approx(10, abs=0.3)
    drops = sum(each["pps"] for each in found["reasons"] if each["reason"].startswith("drop_"))
    assert drops == 0
    assert found["backends"][0]["pps"] == service["pps"]
    assert made.agent.dump() == before
