"""The path of a value in a Kubernetes object: `spec.ports[1].port`, as in messages."""

from __future__ import annotations

FieldPath = tuple[str | int, ...]  # keys of mappings and 0-based places in lists, from the outside to the inside


def path_text(path: FieldPath) -> str:
    """Return `spec.ports[1].port`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text
