"""The pin directory: its place, its contents, and the check that a pinned map is exactly as in layout.py."""

from __future__ import annotations

import os
from pathlib import Path

from lbagent.errors import LayoutMismatch, NotFound
from lbagent.kernel import bpf_map, bpfsys
from lbagent.kernel.bpffs import ensure_bpffs, pin
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.flow_layout import FLOW_LAYOUT
from lbagent.maps.layout import FLOW4_SIZE, FLOW6_SIZE, HOST_ORDER, LB4_PATH, LB_CONFIG, SCHEMA, SNAT4_SIZE, SNAT6_SIZE
from lbagent.maps.lbmaps import GENERATION_MAPS
from lbagent.maps.specs import MapSpec, MapType, Sizes, maglev_inner, map_specs


def pin_dir(bpffs: str | Path) -> Path:
    """Return where the maps of this schema are pinned."""
    return Path(bpffs) / SCHEMA


def ensure_pin_dir(bpffs: str | Path) -> bool:
    """Create the pin directory, and mount a bpf file system first where there is none; return whether one was mounted.

    Raises ConfigError, KernelError.
    """
    mounted = ensure_bpffs(bpffs)
    folder = pin_dir(bpffs)
    with kernel_errors("create", str(folder)):
        folder.mkdir(mode=0o700, exist_ok=True)
    return mounted


def all_specs(sizes: Sizes) -> dict[str, MapSpec]:
    """Return the specs of pinned maps: map_specs, and the Maglev tables' template (a map of maps has no inner size)."""
    inner = maglev_inner(sizes)
    shared = {name: spec for name, spec in map_specs(sizes).items() if name not in GENERATION_MAPS}
    return {inner.name: inner} | shared


def check_map(fd: int, spec: MapSpec, path: Path) -> None:
    """Compare a pinned map with its spec. Raises LayoutMismatch with map, both values and the remedy."""
    info = bpf_map.map_info(fd)
    wanted = {
        "type": int(spec.type),
        "key size": spec.key_size,
        "value size": spec.value_size,
        "max entries": spec.max_entries,
        "flags": spec.flags,
    }
    found = {
        "type": info.type,
        "key size": info.key_size,
        "value size": info.value_size,
        "max entries": info.max_entries,
        "flags": info.flags & ~_ADDED_FLAGS,
    }
    wrong = [f"{name} {found[name]}, wanted {wanted[name]}" for name in wanted if found[name] != wanted[name]]
    if wrong:
        raise LayoutMismatch(
            f"map {spec.name} pinned at {path} has {'; '.join(wrong)}: nothing was changed; start with the sizes it was made"
            " with, or run `lbagent cleanup` first (established connections are lost)"
        )


def check_flow_layout(bpffs: str | Path) -> None:
    """Reject flow tables with another layout than flow_layout.py. Raises LayoutMismatch, KernelError.

    The settings of the programs in force have the number. Versions that did not write it had layout 1; without programs there
    are no flows.
    """
    path = pin_dir(bpffs) / "lb_config"
    with kernel_errors("open", str(path)):
        try:
            fd = bpfsys.obj_get(str(path), read_only=True)
        except FileNotFoundError:
            return
    try:
        with kernel_errors("read", str(path)):
            record = bpf_map.map_lookup(fd, bytes(4), bpf_map.map_info(fd).value_size) or b""
    finally:
        os.close(fd)
    found = int.from_bytes(record[_FLOW_LAYOUT_AT : _FLOW_LAYOUT_AT + 8], HOST_ORDER) or 1
    if found != FLOW_LAYOUT:
        raise LayoutMismatch(
            f"the flow tables pinned under {pin_dir(bpffs)} have layout {found}, this lbagent has layout {FLOW_LAYOUT}: nothing"
            " was changed; use the version that made them, or run `lbagent cleanup` first (established connections are lost)"
        )


_FLOW_LAYOUT_AT = LB_CONFIG.offsets()["flow_layout"]
_ADDED_FLAGS = 1 << 6 | 1 << 11  # zero seed, preserve elements: the kernel may set them, they change no record


def open_pins(bpffs: str | Path, specs: dict[str, MapSpec]) -> dict[str, int]:
    """Open and check the existing pin of every spec; on a mismatch none stays open. Raises LayoutMismatch, KernelError."""
    fds: dict[str, int] = {}
    try:
        for name, spec in specs.items():
            path = pin_dir(bpffs) / name
            with kernel_errors("open", str(path)):
                try:
                    fds[name] = bpfsys.obj_get(str(path))
                except FileNotFoundError:
                    continue
            check_map(fds[name], spec, path)
    except BaseException:
        close_all(fds)
        raise
    return fds


def create_pins(bpffs: str | Path, specs: dict[str, MapSpec], fds: dict[str, int]) -> None:
    """Create and pin the maps that are not in `fds` yet, and add them there; each appears whole or not at all."""

    def create(spec: MapSpec) -> None:
        fds[spec.name] = create_map(spec, fds["lb_maglev_inner"] if spec.type is MapType.HASH_OF_MAPS else 0)
        path = pin_dir(bpffs) / spec.name
        pin(fds[spec.name], path)

    from concurrent.futures import ThreadPoolExecutor  # a reader of the pins starts without it

    missing = [spec for name, spec in specs.items() if name not in fds]
    if missing and missing[0].name == "lb_maglev_inner":  # the template of the maps of maps
        create(missing.pop(0))
    slowest_first = sorted(missing, key=lambda spec: (spec.type is not MapType.PERCPU_ARRAY, -spec.max_entries))
    with ThreadPoolExecutor(os.cpu_count(), "maps") as pool:  # up to 100 MiB to be zeroed
        list(pool.map(create, slowest_first))


def create_map(spec: MapSpec, inner_fd: int = 0) -> int:
    """Create an unpinned map of a spec. Raises KernelError."""
    with kernel_errors("create", f"map {spec.name} ({spec.max_entries} entries of {spec.value_size} bytes)"):
        return bpf_map.map_create(
            spec.type, spec.key_size, spec.value_size, spec.max_entries, spec.flags, spec.name, inner_fd
        )


def close_all(fds: dict[str, int]) -> None:
    """Close the descriptors and forget them."""
    for fd in fds.values():
        os.close(fd)
    fds.clear()


def pinned_sizes(bpffs: str | Path, before: Path | None = None) -> Sizes:
    """Return the sizes of the pinned maps; a pin under `before` takes precedence over the one of its name.

    Raises NotFound where there are none, KernelError.
    """
    entries, values = {}, {}
    for name in ("lb4_service", "lb4_backend", "lb4_flow", "lb6_flow", "lb4_snat", "lb6_snat", "lb4_source_range",
                 "lb4_affinity", "lb4_spill", "lb4_frag", "lb4_path", "lb_maglev_inner"):  # fmt: skip
        path = before / name if before and (before / name).exists() else pin_dir(bpffs) / name
        with kernel_errors("open", str(path)):
            try:
                fd = bpfsys.obj_get(str(path), read_only=True)
            except FileNotFoundError:
                raise NotFound(f"no map {name} under {pin_dir(bpffs)}: no agent has run with this --bpffs") from None
            info = bpf_map.map_info(fd)
            os.close(fd)
        entries[name], values[name] = info.max_entries, info.value_size
    return Sizes(
        flow4=values["lb4_flow"] // FLOW4_SIZE,
        flow6=values["lb6_flow"] // FLOW6_SIZE,
        snat4=values["lb4_snat"] // SNAT4_SIZE,
        snat6=values["lb6_snat"] // SNAT6_SIZE,
        services=entries["lb4_service"],
        backends=values["lb4_path"] // LB4_PATH.size,
        source_ranges=entries["lb4_source_range"],
        affinity=entries["lb4_affinity"],
        spill=entries["lb4_spill"],
        fragments=entries["lb4_frag"],
        maglev_size=values["lb_maglev_inner"] // 4,
    )
