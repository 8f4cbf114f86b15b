"""Rows of `verify --api`: by data plane, with what is repaired."""

from __future__ import annotations

from typing import Any

import pytest

from lbagent.api.object_differences import VerifiedPlanes, object_differences, repair_objects
from lbagent.api.plane_differences import RepairRequest
from lbagent.cli.main import run
from lbagent.errors import NotFound
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.render.renderer_types import Difference
from lbagent.sync.object_verification import ObjectDifference, Verified
from tests.api.test_plane_differences import Plane, runners

FOUR = ObjectDifference(L3n4Addr.parse("10.96.0.1:80"), "shop/web", "stale", "backend 10.0.0.9:80/TCP")
SIX = ObjectDifference(L3n4Addr.parse("[fd00::1]:80"), "shop/web", "missing", "backend [fd00::9]:80/TCP")


class Verification:
    """What each comparison finds, one after the other."""

    def __init__(self, *found: Verified) -> None:
        self.found = list(found)
        self.repairs = 0

    async def look(self) -> Verified:
        return self.found.pop(0)

    async def repair(self) -> Verified:
        self.repairs += 1
        return self.found.pop(0)

    def at_frontends_of(self, plane: str, found: Verified) -> list[ObjectDifference]:
        family = {"bpf": Family.IPV4, "nftables": Family.IPV6}[plane]
        return [each for each in found.differences if each.frontend.family is family]


def parts(verification: Verification, *planes: Plane) -> VerifiedPlanes:
    every = planes or (Plane("bpf"), Plane("nftables", [Difference("differs", "a chain")]))
    return VerifiedPlanes(verification, runners(*every))  # type: ignore[arg-type]


def brief(rows: list[Any]) -> list[tuple[str, str, bool]]:
    return [(row.renderer, row.difference, row.repaired) for row in rows]


async def test_each_data_plane_has_its_family_then_its_own_differences() -> None:
    both = Verified((FOUR, SIX), {"kube": ("endpointslices",)})
    four = ("bpf", "shop/web 10.96.0.1:80/TCP: stale: backend 10.0.0.9:80/TCP", False)
    six = ("nftables", "shop/web [fd00::1]:80/TCP: missing: backend [fd00::9]:80/TCP", False)
    own = ("nftables", "differs: a chain", False)
    assert brief(await object_differences(parts(Verification(both)), "")) == [four, six, own]
    assert brief(await object_differences(parts(Verification(both)), "bpf")) == [four]
    with pytest.raises(NotFound):
        await object_differences(parts(Verification(both)), "other")


async def test_a_silent_watch_is_a_row_although_no_frontend_differs() -> None:
    found = Verified((), {"kube": ("nodes", "pods")})
    rows = await object_differences(parts(Verification(found), Plane("bpf")), "")
    assert brief(rows) == [("bpf", "stale: source kube has missed changes of nodes, pods", False)]


async def test_what_is_left_is_not_repaired() -> None:
    found, left = Verified((FOUR, SIX), {"kube": ("x",)}), Verified((SIX,), {"kube": ("x",)})
    verification = Verification(found, left)
    rows = await repair_objects(parts(verification), RepairRequest())
    assert [row.repaired for row in rows] == [True, False, True]
    assert verification.repairs == 1


async def test_nothing_is_listed_again_where_nothing_differs() -> None:
    verification = Verification(Verified())
    assert await repair_objects(parts(verification, Plane("bpf")), RepairRequest()) == []
    assert verification.repairs == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--api", "-f", "."], 2),
        (["--api", "--renderer", "kube-proxy"], 2),
        (["--api", "--renderer", "nonsense"], 3),
        (["--api"], 5),
    ],
)
def test_exit_codes(words: list[str], code: int, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--socket", str(tmp_path / "none"), *words]) == code
    assert capsys.readouterr().err.count("\n") == 1
