"""Build hook of the wheel: adds the compiled programs, and a tag with their kind of processor.

`pip wheel .` and `pip install .` compile the programs when they are missing or older than their sources. That needs BCC (apt:
python3-bpfcc) on the machine that builds; it is found from an isolated build environment too (bpf/compiler/compile.py).
The sdist has the sources, and the built programs if they exist; a wheel from it is built in the same way.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARTIFACTS = (
    "lbagent/bpf/lbagent.bpf.json",
    "lbagent/bpf/lbagent.dry.bpf.json",
    "lbagent/bpf/lbagent.sampling.bpf.json",
)


class CompiledPrograms(BuildHookInterface):  # type: ignore[type-arg]
    """Found by hatchling through [tool.hatch.build.targets.wheel.hooks.custom]."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile stale programs and set the tag, before the wheel is written. An editable install compiles later."""
        if version != "standard":
            return
        build_programs(self.root)
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
        build_data["pure_python"] = False


def build_programs(root: str) -> None:
    """Compile the programs of a checkout unless they are up to date; end with one sentence if that fails."""
    # -P: pip's build directory must not shadow the standard library; PYTHONPATH: pip empties it of this checkout
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lbagent.bpf.compiler"],
        cwd=root, env=dict(os.environ, PYTHONPATH=root), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not all(Path(root, path).is_file() for path in ARTIFACTS):
        lines = done.stderr.strip().splitlines() or ["the build of the programs printed nothing"]
        sys.stderr.writelines(f"{line}\n" for line in lines[1:])  # clang's messages
        raise SystemExit(
            f"lbagent: no package without its BPF programs: {lines[0]} (`make build` in a checkout does both)"
        )
