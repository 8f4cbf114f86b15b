"""Where in a Kubernetes object a value stands: `spec.ports[1].port`, as messages write it."""

from __future__ import annotations

FieldPath = tuple[str | int, ...]  # keys of mappings and 0-based places in lists, from the outermost in


def path_text(path: FieldPath) -> str:
    """Return `spec.ports[1].port`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text
