"""The word of an object's kind."""

from __future__ import annotations

from lbagent.objects.records import KINDS, KubeObject, LocalRedirect

_KIND_OF_CLASS = {record: kind for kind, record in KINDS.items()}


def kind_of(obj: KubeObject) -> str:
    """Return the word of an object's kind, as Kubernetes spells it."""
    return obj.kind if isinstance(obj, LocalRedirect) else _KIND_OF_CLASS[type(obj)]
