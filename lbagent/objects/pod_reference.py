"""References to Pods as operators write them, `pod/NAMESPACE/NAME`; in the code a Pod's key is `NAMESPACE/NAME`."""

from __future__ import annotations

PREFIX = "pod/"


def is_pod_reference(text: str) -> bool:
    """Return whether a text is a reference to an object; an address never has this form."""
    return text.startswith(PREFIX)


def parse_pod_reference(text: str) -> str:
    """Return the key `NAMESPACE/NAME` of `pod/NAMESPACE/NAME`. Raises ValueError."""
    namespace, slash, name = text.removeprefix(PREFIX).partition("/")
    is_whole = is_pod_reference(text) and slash and namespace and name and "/" not in name
    if not is_whole or not text.isprintable() or len(text) > MAX_LENGTH:
        raise ValueError(f"{text[:MAX_LENGTH]!r} is not a reference of the form pod/NAMESPACE/NAME")
    return f"{namespace}/{name}"


def pod_reference(key: str) -> str:
    """Return `pod/NAMESPACE/NAME` of a Pod's key."""
    return PREFIX + key


MAX_LENGTH = 253  # characters; such a reference is the name of a BackendState, and a Kubernetes name is no longer
