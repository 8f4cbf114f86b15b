"""Tags the wheel: compiled programs inside are for one kind of processor; without them it holds sources alone, for any."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProcessorTag(BuildHookInterface):  # type: ignore[type-arg]
    """Found by hatchling through [tool.hatch.build.targets.wheel.hooks.custom]."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Set the tag before the wheel is written."""
        if version == "standard" and Path(self.root, "lbagent/bpf/lbagent.bpf.json").is_file():
            build_data["tag"] = f"py3-none-linux_{platform.machine()}"
            build_data["pure_python"] = False
