"""The data plane `bpf` as `--renderer` and `lbagent renderers` name it. It is imported whole when it is used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lbagent.errors import LbError
from lbagent.targets.data_plane import Feature

if TYPE_CHECKING:
    from lbagent.config import Config
    from lbagent.model.check import Check
    from lbagent.targets.bpf.checks.offline_context import OfflineContext
    from lbagent.targets.data_plane import DataPlane

NAME = "bpf"
FEATURES = frozenset(Feature)


def make(config: Config, settings: str) -> DataPlane:
    """Return the data plane, not opened yet. It has no settings of its own: its options are those of the agent."""
    del settings
    from lbagent.targets.bpf.bpf_plane import BpfDataPlane

    return BpfDataPlane(config, FEATURES)


def checks() -> tuple[Check[Any], ...]:
    """Return the table of its checks."""
    from lbagent.targets.bpf.checks.bpf_checks import bpf_checks

    return bpf_checks()


def offline_node(config: Config) -> OfflineContext:
    """Return what they read before the start."""
    from lbagent.targets.bpf.checks.offline_context import OfflineContext

    return OfflineContext(config)


def unavailable() -> str:
    """Return why this process cannot use BPF here; '' when it can. It loads one tiny program, which goes again."""
    from lbagent.bpf.load.loader import require_kernel
    from lbagent.kernel import features

    try:
        require_kernel()
    except LbError as error:
        return str(error)
    if number := features.can_load():
        advice = "; run as root" if os.geteuid() else ""
        return f"this process may not load BPF programs: {os.strerror(number)}{advice}"
    return ""
