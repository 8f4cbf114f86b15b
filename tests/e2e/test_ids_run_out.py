"""Backend ids run out during requests: served backends continue, nothing is sent to a removed backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, Cluster
from tests.lab.manifests import Endpoint, Manifest, put
from tests.lab.netns import wait_for

pytestmark = pytest.mark.early

IDS = 255  # --max-backends 256
GOOD, OTHER = (VIP4,), ("10.96.0.11",)


def crowd(folder: Path, namespace: str, count: int) -> None:
    """Write Services of one backend each, all in one file whose name sorts last."""
    items = [
        each
        for number in range(count)
        for each in Manifest(
            f"s{number}",
            [f"10.97.{number >> 8}.{number & 255}"],
            [Endpoint(f"10.200.{number >> 8}.{number & 255}")],
            namespace=namespace,
        ).objects()
    ]
    put(folder, "z-crowd.yaml", json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def good(made: Cluster, *names: str, vips: tuple[str, ...] = GOOD, name: str = "good") -> Manifest:
    endpoints = [each for each in made.endpoints(*names) if ":" not in each.address]
    return Manifest(name, vips, endpoints)


def failing(made: Cluster) -> dict[str, str]:
    return {item["service"]: item["error"] for item in made.agent.api.status()["failing"]}


def answers(made: Cluster, vips: tuple[str, ...] = GOOD) -> set[str]:
    return set(made.http(40, vips))


def test_a_full_namespace_keeps_what_it_serves(fresh: Callable[..., Cluster]) -> None:
    """A Service of the same namespace has taken every id."""
    made = fresh("tc", "--max-backends", "256")
    good(made, "b1").write(made.folder)
    good(made, "b2", vips=OTHER, name="other").write(made.folder)
    crowd(made.folder, "e2e", 300)
    made.agent.start()
    wait_for(lambda: made.agent.api.status()["failing"], "Services without an id")
    assert answers(made) == {"b1"}

    good(made, "b1", "b3").write(made.folder)
    wait_for(lambda: "e2e/good" in failing(made), "the backend without an id")
    b3 = made.lab.backends["b3"].ipv4
    assert f"255 of 255 backend ids are in use: no id for {b3}:8080/TCP" in failing(made)["e2e/good"]
    assert failing(made)["e2e/good"].endswith("the frontend continues with 1 of 2 backends")
    assert answers(made) == {"b1"}

    assert made.agent.stop() == 0
    made.agent.start()
    assert answers(made) == {"b1"}
    assert answers(made, OTHER) == {"b2"}, "the Service that comes after the one that lacks an id"
    assert "e2e/good" in failing(made)

    good(made, "b3").write(made.folder)
    wait_for(lambda: "e2e/good" not in failing(made), "the id that b1 gave back")
    assert answers(made) == {"b3"}
    assert answers(made, OTHER) == {"b2"}


def test_a_namespace_takes_nothing_from_another(fresh: Callable[..., Cluster]) -> None:
    """300 Services of `evil` get their share; a Service of another namespace grows, and is replaced, independent of them."""
    made = fresh("tc", "--max-backends", "256")
    crowd(made.folder, "evil", 300)
    good(made, "b1").write(made.folder)
    made.agent.start()
    wait_for(lambda: made.agent.api.status()["failing"], "Services above the share")
    assert all(name.startswith("evil/") for name in failing(made))
    assert all("namespace evil has" in text and "--max-backends" in text for text in failing(made).values())
    assert answers(made) == {"b1"}
    made.serve(good(made, "b1", "b2"))
    assert answers(made) == {"b1", "b2"}
    made.serve(good(made, "b3"))
    assert answers(made) == {"b3"}

    found = made.agent.api.status()
    (row,) = [each for each in found["maps"] if each["name"] == "lb4_backend"]
    assert row["used"] == IDS * 4 // 5
    assert list(row["namespaces"].items()) == [("evil", IDS * 4 // 5 - 1), ("e2e", 1)]
    most = "most of them by namespace: evil 203, e2e 1"
    assert f"lb4_backend: 204 of 256 (80%), {most}" in made.agent.cli("status", check=False).stdout

    def nearly_full() -> list[dict[str, Any]]:
        return [each for each in made.agent.api.status()["conditions"] if each["name"] == "map-nearly-full"]

    (condition,) = wait_for(nearly_full, "the condition")
    assert condition["subject"] == "backend ids"
    assert condition["text"] == f"204 of 255 backend ids are in use (80%), {most}"
