"""What maps and programs serve without an agent, for `lbagent status`."""

from __future__ import annotations

from lbagent.bpf.load.attach import attached
from lbagent.errors import LbError
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.pins import pin_dir


def left_serving(bpffs: str) -> list[tuple[str, str]]:
    """Return pairs of a word and a text; what cannot be read is left out."""
    try:
        found = attached(pin_dir(bpffs))
        hooks = [f"{item.target.name} ({item.hook})" for item in found if item.target.kind == "device"]
        cgroups = sorted({item.target.name for item in found if item.target.kind == "cgroup"})
        with KernelMaps.open(bpffs, create=False) as maps:
            rows = len(maps.items("lb4_service")) + len(maps.items("lb6_service"))
            backends = len(maps.items("lb4_backend")) + len(maps.items("lb6_backend"))
    except (LbError, OSError):
        return [("datapath", f"no maps can be read at {bpffs}")]
    return [
        ("datapath", f"{rows} service rows, {backends} backends at {bpffs}; still served without an agent"),
        ("devices", ", ".join(sorted(hooks)) or "none attached"),
        *(("cgroup", f"{path}: socket programs") for path in cgroups),
    ]
