"""Plug-ins of renderers as a package installer leaves them: a module and its dist-info in a folder of the path."""

from __future__ import annotations

import sys
from pathlib import Path


def install(folder: Path, distribution: str, name: str, source: str, *, value: str = "") -> None:
    """Install a distribution with one renderer; the module is named like the distribution, its factory `make`."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lbagent.renderers]\n{name} = {value or module + ':make'}\n")


def forget_modules(folder: Path) -> None:
    """Have the modules of a folder imported again."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


GOOD = """
class Good:
    def __init__(self, settings):
        if settings.keys() - {"colour"}:
            raise ValueError(f"unknown settings {sorted(settings)}")
        self.calls = []
    async def add_service(self, service): self.calls.append("add")
    async def update_service(self, old, new, others): self.calls.append("update")
    async def delete_service(self, service, others): self.calls.append("delete")
    async def update_node_port_services(self, node_ips, services): self.calls.append("node_ports")
    async def update_local_frontend_ifs(self, old, new): self.calls.append("frontend_ifs")
    async def update_local_backend_ifs(self, old, new): self.calls.append("backend_ifs")
    async def resync(self, snapshot): self.calls.append("resync")
    async def flush(self): self.calls.append("flush")
    async def dump(self): return self.calls
    async def verify(self, snapshot): return []
    def capabilities(self): return frozenset({"weights", "colour"})
    async def close(self, keep): self.calls.append("close")

def make(settings):
    return Good(settings)
"""
