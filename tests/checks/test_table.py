"""The table of checks: doctor and the agent have one sentence and one remedy for one question."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace as Some
from typing import Any

import pytest

from lbagent.checks.table import every_check, offline_findings
from lbagent.config import Config
from lbagent.model.address import parse_ip
from lbagent.model.check import Check, Finding, Level, Result, Severity, When
from lbagent.model.family import Family
from lbagent.targets.bpf.checks.offline_context import OfflineContext
from lbagent.targets.bpf.checks.running_context import RunningContext
from tests.net.builders import network

BOTH = {check.name: check for check in every_check() if check.when is When.BOTH}


def test_what_both_ask() -> None:
    assert list(BOTH) == [
        "private-mount", "device-missing", "forwarding-off", "reverse-path-strict", "snat-ports-short",
        "snat-address-missing",
    ]  # fmt: skip
    waiting = [check.name for check in every_check() if check.when.offline and inspect.iscoroutinefunction(check.run)]
    assert waiting == [], "doctor does not wait"


def running(**parts: Any) -> RunningContext:
    return RunningContext(Some(**parts))  # type: ignore[arg-type]


def findings(name: str, context: Any) -> list[Finding]:
    check = BOTH[name]
    return [check.finding(result) for result in check.run(context)]  # type: ignore[union-attr]


def same(name: str, before: OfflineContext, agent: RunningContext) -> Finding:
    """Return the one finding of both; only doctor's level and the agent's severity tell them apart."""
    (one,), (other,) = findings(name, before), findings(name, agent)
    assert one == other
    return one


@pytest.mark.root
def test_forwarding(netns: Any) -> None:
    netns.sysctl("ipv4/ip_forward", 1)
    netns.sysctl("ipv6/conf/all/forwarding", 0)
    agent = running(
        config=Config(device=("v0",)),
        usage=lambda: {"lb4_backend": (1, 9), "lb6_backend": (1, 9)},
        follower=Some(finder=Some(forwards=set(Family))),
        devices=Some(attached=[Some(target=Some(name="v0"))]),
    )
    found = same("forwarding-off", OfflineContext(Config(device=("v0",))), agent)
    assert (found.subject, found.text) == ("IPv6", "IPv6 forwarding is off: no packet reaches a pod or another host")
    assert found.remedy == "sysctl -w net.ipv6.conf.all.forwarding=1"
    netns.sysctl("ipv6/conf/all/forwarding", 1)
    netns.sysctl("ipv4/conf/v0/forwarding", 0)
    found = same("forwarding-off", OfflineContext(Config(device=("v0",))), agent)
    assert found.text.startswith("IPv4 forwarding is off on device v0: ")


@pytest.mark.root
def test_a_device_that_is_missing_beside_another_one(netns: Any) -> None:
    config = Config(device=("eth9", "v0"))
    before = OfflineContext(config)
    keeper = Some(problems=before.chosen.missing, chosen=before.chosen, last_index={})
    found = same("device-missing", before, running(config=config, devices=keeper, follower=Some(network=network())))
    assert found.text == "device eth9 is not there; programs are attached when it comes"
    assert found.remedy.startswith("bring eth9 back, or remove it from --device")


@pytest.mark.root
def test_a_source_address_that_no_device_has(netns: Any) -> None:
    before = OfflineContext(Config(snat_address=("10.99.0.1",)))
    agent = running(
        follower=Some(network=network()), extra_snat=Some(addresses=lambda: [parse_ip("10.99.0.1")]), config=Config()
    )
    assert same("snat-address-missing", before, agent).subject == "10.99.0.1"


def test_a_sentence_is_that_of_the_check_unless_the_result_has_its_own() -> None:
    check: Check[None] = Check(
        "full", "tables", lambda _: (), "{table} is full", "raise {option}", good="{table} has room"
    )
    values = {"table": "flows", "option": "--x"}
    assert check.finding(Result("flows", values)) == Finding("full", "flows", "flows is full", "raise --x")
    good = check.finding(Result("flows", values, level=Level.OK))
    assert (good.text, good.remedy) == ("flows has room", "")
    own = check.finding(Result("a", text="{as it is}", remedy="", severity=Severity.DEGRADED, mended=True))
    assert own == Finding("full", "a", "{as it is}", severity=Severity.DEGRADED, mended=True)


@pytest.mark.root
def test_doctor_gives_findings_in_the_order_of_the_table(netns: Any) -> None:
    order = [check.name for check in every_check()]
    found = [order.index(each.name) for each in offline_findings(Config(device=("v0",)))]
    assert found == sorted(found)


def test_a_data_plane_without_checks_needs_nothing_of_bpf() -> None:
    """As any user: doctor reads neither kernel nor devices; it shows whether the data plane can be used."""
    assert [(each.level, each.text) for each in offline_findings(Config(renderer=("none",)))] == [
        (Level.OK, "data plane none: it can be used here")
    ]
    script = (
        "import os, sys; os.getuid() or os.setresuid(65534, 65534, 65534)\n"
        "from lbagent.checks.table import offline_findings\n"
        "from lbagent.config import Config\n"
        "offline_findings(Config(renderer=('none',)))\n"
        "print([name for name in sys.modules if name.startswith(('lbagent.bpf', 'lbagent.maps', 'lbagent.targets.bpf'))])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_renderer_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from lbagent.targets.none import none_renderer

    monkeypatch.setattr(none_renderer, "unavailable", lambda: "no room")
    (found,) = offline_findings(Config(renderer=("none",)))
    assert (found.level, found.text, found.exit_code) == (Level.ERROR, "--renderer none is not available: no room", 77)
