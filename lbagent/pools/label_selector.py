"""LabelSelector of Kubernetes: matchLabels and matchExpressions, all of which must hold. Source: apimachinery, meta/v1."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class Requirement(Struct, frozen=True, gc=False):
    """One expression: a key, an operator of `OPERATORS`, and the values of In and NotIn."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels match it. NotIn matches if the key is missing."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        return (value is not None) == (self.operator == "Exists")


class LabelSelector(Struct, frozen=True, gc=False):
    """Requirements that must all hold; without any it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels match every requirement."""
        return all(each.matches(labels) for each in self.requirements)
