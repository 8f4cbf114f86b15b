"""The controllers by their names in Kubernetes, and which of them --controllers enables.

Source: k8s.io/cloud-provider, names (canonical ones and aliases); controller-manager, IsControllerEnabled (behaviour).
"""

from __future__ import annotations

from lbagent.errors import ConfigError

SERVICE_LB = "service-lb-controller"
CLOUD_NODE = "cloud-node-controller"
NODE_LIFECYCLE = "cloud-node-lifecycle-controller"
NODE_ROUTE = "node-route-controller"
ALIASES = {"service": SERVICE_LB, "cloud-node": CLOUD_NODE, "cloud-node-lifecycle": NODE_LIFECYCLE, "route": NODE_ROUTE}
NAMES = tuple(ALIASES.values())
SWITCHES = "*"  # all


def check_switches(text: str) -> None:
    """Check the names. Raises ConfigError for an unknown one."""
    for word in _words(text):
        if word != SWITCHES and word.removeprefix("-") not in NAMES:
            known = ", ".join(NAMES)
            raise ConfigError(f"--controllers: unknown controller {word!r}; there are: {known} (-NAME excludes one)")


def is_switched_on(text: str, name: str) -> bool:
    """Return whether a list like `*,-node-route-controller` enables a controller; the first matching entry counts."""
    words = _words(text)
    for word in words:
        if word.removeprefix("-") == name:
            return word == name
    return SWITCHES in words


def _words(text: str) -> list[str]:
    """Return the words of a list, with aliases replaced by their names."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return [
        ("-" if word.startswith("-") else "") + ALIASES.get(word.removeprefix("-"), word.removeprefix("-"))
        for word in words
    ]
