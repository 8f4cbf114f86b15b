"""Fair shares of a limited table (max-min fairness): how many entries each holder may have when not all fit. Pure numbers.

While all holders together need at most 80 % (`GUARD`) of a table, each gets what it needs. Beyond that, a holder that needs more
than its share does not grow; the rest of the table is for holders within theirs. The share is that of max-min fairness in these
80 %, and at least the table divided by the number of holders. No holder loses an entry that it has and still wants. A table
with one holder has no shares: the holder may fill it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import TypeVar

GUARD = Fraction(4, 5)
_PARTS, _WHOLE = GUARD.as_integer_ratio()

Holder = TypeVar("Holder", bound=Hashable)


def guard_of(limit: int) -> int:
    """Return how many entries of a table with `limit` entries are assigned without regard to shares."""
    return limit * _PARTS // _WHOLE


def allowed_entries(
    limit: int, used: Mapping[Holder, int], wanted: Mapping[Holder, int], most: int = 0
) -> dict[Holder, int]:
    """Return how many entries each holder in `wanted` may have now, including those that it has (`used`).

    `wanted` counts all entries that a holder wants, including its existing ones; `used` is at most that. `most` is a limit for
    each holder, 0 for none. No result is below `used`; the sum of the results exceeds `limit` only if the sum of `used` does.
    """
    floors = {holder: used.get(holder, 0) for holder in wanted}
    return water_fill(limit, floors, fair_targets(limit, used, wanted, most))


def fair_targets(
    limit: int, used: Mapping[Holder, int], wanted: Mapping[Holder, int], most: int = 0
) -> dict[Holder, int]:
    """Return the count to which each holder may grow while there is room: what it needs, its share, or what it has."""
    floors = {holder: used.get(holder, 0) for holder in wanted}
    targets = {holder: max(floors[holder], min(number, most) if most else number) for holder, number in wanted.items()}
    if len(targets) > 1 and sum(targets.values()) > (guard := guard_of(limit)):
        least, shares = limit // len(targets), water_fill(guard, dict.fromkeys(targets, 0), targets)
        targets = {
            holder: max(floors[holder], shares[holder], min(target, least)) for holder, target in targets.items()
        }
    return targets


def water_fill(capacity: int, floors: Mapping[Holder, int], targets: Mapping[Holder, int]) -> dict[Holder, int]:
    """Raise the holders from their floors to their targets until the capacity is used, the lowest first."""
    if sum(targets.values()) <= capacity:
        return dict(targets)

    def filled(level: int) -> dict[Holder, int]:
        return {holder: max(floors[holder], min(target, level)) for holder, target in targets.items()}

    low, high = 0, max(targets.values())  # the level lies in [low, high)
    while high - low > 1:
        level = (low + high) // 2
        low, high = (level, high) if sum(filled(level).values()) <= capacity else (low, level)
    found = filled(low)
    left = capacity - sum(found.values())
    for holder, target in targets.items():
        if left > 0 and found[holder] == low < target:
            found[holder] += 1
            left -= 1
    return found
