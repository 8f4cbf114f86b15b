"""`lbagent verify` of both data planes in a real kernel: another program changes them, with and without an agent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.cluster import NODE, Cluster, routed_lab
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf]
NODE_IP = ("--node-ip", "10.77.0.1", "--node-ip", "fd77::1")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with routed_lab("verify-") as lab:
        yield lab


def started(lab: Lab, *arguments: str) -> Cluster:
    made = Cluster(lab, "tc")
    made.web().write(made.folder)
    made.agent.arguments = [*arguments, *NODE_IP]
    made.agent.start()
    return made


def differences(made: Cluster, *words: str) -> list[dict[str, Any]]:
    done = made.agent.cli("verify", "-o", "json", *words, check=False)
    assert done.stderr == ""
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == int(not all(row["repaired"] for row in rows))
    return rows


def kinds(rows: list[dict[str, Any]]) -> set[tuple[str, str | None, str]]:
    return {(row["renderer"], row["service"], row["kind"]) for row in rows}


def delete_slots(lab: Lab) -> None:
    """Delete all slots of frontends of pods and clients, as a careless script would."""
    from lbagent.maps.kernel_maps import KernelMaps

    with KernelMaps.open(lab.bpffs, create=False) as maps:
        maps.delete_many("lb4_service", [key for key, _ in maps.items("lb4_service")])


def delete_frontends(lab: Lab) -> None:
    subprocess.run(lab.node.command(["nft", "flush", "map", "inet", "lbagent", "frontends4"]), check=True)


def delete_table(lab: Lab) -> None:
    subprocess.run(lab.node.command(["nft", "flush", "ruleset"]), check=True)


@pytest.mark.parametrize(
    ("renderer", "deed", "service"),
    [
        ("bpf", delete_slots, "e2e/web"),
        ("nftables", delete_frontends, "e2e/web"),
        ("nftables", delete_table, None),
    ],
)
def test_what_another_program_deleted_is_named_and_repaired(
    lab: Lab, renderer: str, deed: Callable[[Lab], None], service: str | None
) -> None:
    made = started(lab, "--renderer", renderer)
    assert differences(made) == []
    deed(lab)
    found = differences(made, "--renderer", renderer)
    assert (renderer, service, "missing") in kinds(found)
    repaired = differences(made, "--repair")
    assert (renderer, service, "missing") in kinds(repaired)
    assert all(row["repaired"] for row in repaired)
    assert differences(made) == []
    assert set(made.http()) == {"b1", "b2", "b3"}


@pytest.mark.parametrize(("renderer", "deed"), [("bpf", delete_slots), ("nftables", delete_table)])
def test_it_is_repaired_without_a_command(lab: Lab, renderer: str, deed: Callable[[Lab], None]) -> None:
    """By the comparison that is made again and again (60 s; here 1 s)."""
    made = started(lab, "--renderer", renderer, "--resync-interval", "1s")
    deed(lab)
    wait_for(lambda: not differences(made), "the repair", 15)
    assert set(made.http()) == {"b1", "b2", "b3"}


@pytest.mark.parametrize(("renderer", "deed"), [("bpf", delete_slots), ("nftables", delete_frontends)])
def test_a_change_of_a_service_in_between_hides_nothing(lab: Lab, renderer: str, deed: Callable[[Lab], None]) -> None:
    """Another program deletes something; then the agent writes an unrelated change, before it compares."""
    made = started(lab, "--renderer", renderer, "--resync-interval", "2s")
    deed(lab)
    made.dns().write(made.folder)
    wait_for(lambda: "e2e/dns" in made.agent.cli("svc", "list").stdout, "the new Service", 15)
    wait_for(lambda: not differences(made), "the repair", 15)
    assert set(made.http()) == {"b1", "b2", "b3"}


@pytest.mark.parametrize("renderer", ["bpf", "nftables"])
def test_manifests_are_compared_without_an_agent(lab: Lab, renderer: str) -> None:
    made = started(lab, "--renderer", renderer)
    words = (
        "--renderer",
        renderer,
        "-f",
        str(made.folder),
        "--node",
        NODE,
        "--pod-device",
        "pod*",
        "--bpffs",
        str(lab.bpffs),
        *NODE_IP,
    )
    assert differences(made, *words) == []
    assert made.agent.stop() == 0
    assert differences(made, *words) == []
    made.web("b1", "b2").write(made.folder)
    found = differences(made, *words)
    assert {row["service"] for row in found} <= {"e2e/web", None}
    assert found
    if renderer == "nftables":
        assert all(row["repaired"] for row in differences(made, *words, "--repair"))
        assert differences(made, *words) == []
        assert set(made.http()) == {"b1", "b2"}


@pytest.mark.parametrize(
    ("arguments", "renderers"),
    [
        (("--renderer", "nftables"), {"nftables"}),
        (("--renderer", "bpf"), {"bpf"}),
        (("--renderer", "bpf=family=ipv4", "--renderer", "nftables=family=ipv6"), {"bpf", "nftables"}),
    ],
)
def test_manifests_are_compared_with_what_is_there(lab: Lab, arguments: tuple[str, ...], renderers: set[str]) -> None:
    """Without --renderer: the data planes that are there, each with the family that it serves."""
    made = started(lab, *arguments)
    words = ("-f", str(made.folder), "--node", NODE, "--pod-device", "pod*", "--bpffs", str(lab.bpffs), *NODE_IP)
    wait_for(lambda: all(each["in_sync"] for each in made.agent.json("status")["targets"]), "all data planes")
    assert made.agent.stop() == 0
    assert differences(made, *words) == []
    made.web("b1", "b2").write(made.folder)
    found = differences(made, *words)
    assert {row["renderer"] for row in found} == renderers
    assert {row["service"] for row in found} <= {"e2e/web", None}
    if renderers == {"nftables"}:
        assert all(row["repaired"] for row in differences(made, *words, "--repair"))
        assert differences(made, *words) == []
    if len(renderers) > 1:  # only an agent repairs bpf; the table is repaired all the same
        assert made.agent.cli("verify", "--repair", *words, check=False).returncode == 5
        assert {row["renderer"] for row in differences(made, *words)} == {"bpf"}


def test_nothing_is_there_to_compare(lab: Lab) -> None:
    made = Cluster(lab, "tc")
    made.web().write(made.folder)
    done = made.agent.cli("verify", "-f", str(made.folder), "--bpffs", str(lab.bpffs), check=False)
    assert done.returncode == 3
