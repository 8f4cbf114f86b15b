"""The data plane `bpf` as `--renderer` and `lbagent renderers` name it. It is imported whole when it is used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lbagent.errors import LbError
from lbagent.targets.data_plane import Feature

if TYPE_CHECKING:
    from lbagent.config import Config
    from lbagent.config.renderer_words import RendererSettings
    from lbagent.targets.data_plane import DataPlane

NAME = "bpf"
FEATURES = frozenset(Feature)


def make(config: Config, settings: RendererSettings) -> DataPlane:
    """Return the data plane, not opened yet. It has no settings but the family: its options are those of the agent."""
    if settings.family is not None:
        from lbagent.targets.bpf.bpf_one_family import BpfOneFamily

        return BpfOneFamily(config, FEATURES, settings.family)
    from lbagent.targets.bpf.bpf_plane import BpfDataPlane

    return BpfDataPlane(config, FEATURES)


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
