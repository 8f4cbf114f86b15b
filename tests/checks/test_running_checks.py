"""Each check that holds for every data plane by itself, over components that have only what it reads."""

from __future__ import annotations

from types import SimpleNamespace as Some

from msgspec.structs import replace

from lbagent.announce.announcer import AddressConflict
from lbagent.model.address import L3n4Addr
from lbagent.model.check import Finding, Result, Severity
from lbagent.model.message import Message
from lbagent.net.snapshot import Link
from lbagent.resolve.ownership import Contest
from tests.checks.looking import Look, conditions

check_conflicts, check_contests = Look("address-conflict"), Look("frontend-contested")
check_sources, check_objects = Look("source-untrusted", "objects-refused"), Look("objects-mismatch")
NO_IDS = Some(id_usage=dict)
ETH0, ETH1 = Link(2, "eth0", b"\2" * 6, 1500, True), Link(3, "eth1", b"\3" * 6, 1500, True)


def brief(found) -> list[tuple[str, str]]:
    return [(each.name, each.subject) for each in found]


def test_severities() -> None:
    """What anyone who may write objects causes is degraded, and what is of another node; every other name is a fault."""
    degraded = {check.name for check in conditions() if check.severity is Severity.DEGRADED}
    assert degraded == {
        "backend-check-fails",
        "backend-refuses",
        "health-panic",
        "next-hop-unresolved",
        "node-dead",
        "path-unusable",
        "snat-ports-short",
        "objects-refused",
        "objects-mismatch",
    }
    (drops,) = (check for check in conditions() if check.name == "drops-grow")
    assert drops.finding(Result("", text="why", remedy="", severity=Severity.DEGRADED)).severity is Severity.DEGRADED


def source(*messages: Message, distrust: Message | None = None) -> list[Finding]:
    one = Some(
        name="folder",
        synced=Some(is_set=lambda: True),
        distrust=distrust,
        problems=lambda: list(messages),
        remedy="repair the source",
    )
    return list(check_sources(Some(sources=[one])))


def test_sources() -> None:
    gone = Message("the folder cannot be read: No such file or directory", "kept 2 objects", file="/etc/lb")
    bad, odd = Message("bad port", file="a.yaml", line=3), Message("has no effect", warning=True)
    assert source() == []
    assert source(odd) == []
    (found,) = source(gone, distrust=gone)
    assert brief([found]) == [("source-untrusted", "folder")]
    assert found.remedy == "repair the source"
    (found,) = source(odd, bad, bad)
    assert brief([found]) == [("objects-refused", "folder")]
    assert found.text == "source folder: objects or fields are refused: a.yaml:3: bad port, and 1 more"
    assert found.severity is Severity.FAULT, "a file that does not count is the operator's"
    (found,) = source(replace(bad, kind="Service", key="shop/web"), replace(bad, kind="Service", key="shop/api"))
    assert found.severity is Severity.DEGRADED, "a field of an object is its author's"
    untrusted, refused = source(bad, gone, distrust=gone)
    assert brief([untrusted, refused]) == [("source-untrusted", "folder"), ("objects-refused", "folder")]
    assert untrusted.text.startswith(f"source folder: {gone}"), "wherever the message stands"
    assert "a.yaml:3: bad port" in refused.text
    (found,) = source(distrust=replace(gone, problem="the folder is back and its files are read"))
    assert brief([found]) == [("source-untrusted", "folder")], "a reason that is no problem of its own"


def test_an_address_that_another_host_claims_or_has() -> None:
    """Both the address and the MAC address are named; without an announcer there is no such condition."""
    four, mac = bytes((10, 0, 0, 7)), bytes.fromhex("02aa00000007")
    found = [AddressConflict(four, mac, is_defended=True), AddressConflict(bytes(15) + b"\7", mac, is_defended=False)]
    claimed, taken = check_conflicts(Some(announcer=Some(conflicts=lambda: found)))
    assert brief([claimed, taken]) == [("address-conflict", "10.0.0.7"), ("address-conflict", "::7")]
    assert claimed.text == (
        "10.0.0.7 is claimed: the host with the MAC address 02:aa:00:00:00:07 answers for it, too; "
        "this node continues to announce it (l2.conflict: defend)"
    )
    assert "it is not announced" in taken.text
    assert brief(check_conflicts(Some(announcer=Some(conflicts=list)))) == []
    assert brief(check_conflicts(Some(announcer=None))) == []


def test_a_contest_names_both_services_and_its_frontend() -> None:
    def contest(number: int, loser: str, winner: str) -> Contest:
        frontend = L3n4Addr(bytes((10, 96, 0, number)), 80)
        problem = f"{frontend.with_protocol()} is held by Service {winner} as its ClusterIP"
        return Contest(frontend, loser, winner, Message(problem, kind="Service", key=loser))

    contests = [contest(1, "evil/a", "t/one"), contest(2, "evil/a", "t/one"), contest(3, "evil/a", "t/two")]
    other = Message("it has no endpoints")
    components = Some(loop=Some(contests=contests, messages=[*(each.message for each in contests), other]))
    found = list(check_contests(components))
    assert brief(found) == [("frontend-contested", "evil/a t/one"), ("frontend-contested", "evil/a t/two")]
    assert found[0].severity is Severity.FAULT
    assert found[0].text == (
        "a claim of Service evil/a is not served: 10.96.0.1:80/TCP is held by Service t/one as its ClusterIP, and 1 more"
    )
    (mismatch,) = check_objects(components)
    assert mismatch.text == "objects do not fit together: it has no endpoints", "a contest is not counted twice"
    components.loop.contests = [contest(1, f"evil/s{number:02}", "t/one") for number in range(25)]
    found = list(check_contests(components))
    assert len(found) == 21
    assert (found[-1].subject, found[-1].text) == ("more", "5 more Services claim frontends that another Service has")
    components.loop.contests = []
    assert list(check_contests(components)) == []
