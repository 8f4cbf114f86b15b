"""Reads a kernel setting below /proc/sys/net of this network namespace."""

from __future__ import annotations

from pathlib import Path


def net_sysctl(name: str) -> str:
    """Return the value of a setting, like `ipv4/ip_forward`; '' where it does not exist (no such family or device)."""
    try:
        return Path("/proc/sys/net", name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
