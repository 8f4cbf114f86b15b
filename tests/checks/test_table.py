"""The table of checks: doctor and the agent have one sentence and one remedy for one question."""

from __future__ import annotations

import inspect
from types import SimpleNamespace as Some
from typing import Any

import pytest

from lbagent.checks.offline_context import OfflineContext
from lbagent.checks.running_context import RunningContext
from lbagent.checks.table import every_check, offline_findings
from lbagent.config import Config
from lbagent.model.address import parse_ip
from lbagent.model.check import Check, Finding, Level, Result, Severity, When
from lbagent.model.family import Family
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
        bpf=Some(usage=lambda: {"lb4_backend": (1, 9), "lb6_backend": (1, 9)}),
        network=Some(finder=Some(forwards=set(Family))),
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
    found = same("device-missing", before, running(config=config, devices=keeper, network=Some(network=network())))
    assert found.text == "device eth9 is not there; programs are attached when it comes"
    assert found.remedy.startswith("bring eth9 back, or remove it from --device")


@pytest.mark.root
def test_a_source_address_that_no_device_has(netns: Any) -> None:
    before = OfflineContext(Config(snat_address=("10.99.0.1",)))
    agent = running(
        network=Some(network=network()), further=Some(addresses=lambda: [parse_ip("10.99.0.1")]), config=Config()
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
    found = [order.index(each.name) for each in offline_findings(OfflineContext(Config(device=("v0",))))]
    assert found == sorted(found)
