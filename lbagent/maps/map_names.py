"""The names of the maps of one address family: `lb4_service`, `lb6_service`. The maps of both families have no digit."""

from __future__ import annotations

from lbagent.model.family import Family

_BY_DIGIT = {family.digit: family for family in Family}


def family_map(family: Family, name: str) -> str:
    """Return the full name of a family's own map: of `service` it is `lb4_service` or `lb6_service`."""
    return f"lb{family.digit}_{name}"


def family_of_map(map_name: str) -> Family | None:
    """Return the family of a name that `family_map` returned; None for a map of both families, such as lb_filter."""
    return _BY_DIGIT.get(map_name[2])
