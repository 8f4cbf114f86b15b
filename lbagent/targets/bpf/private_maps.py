"""Maps in the kernel that only one question uses: a State that is not in force, and the node's devices and next hops.

Selection depends on the State and on the seeds alone, so it is that of the maps in force under the same State. The flow tables are
empty and small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

from lbagent.bpf.run.sweep import trust_ages
from lbagent.errors import ConfigError
from lbagent.maps import frontend_codec, pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.lbmaps import GENERATION_MAPS
from lbagent.maps.specs import MapType, Sizes
from lbagent.model.backend import Backend
from lbagent.model.ids import BACKEND_ID_LIMIT
from lbagent.model.path_info import PathInfo
from lbagent.model.state import State
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.dry_run import with_fresh_ids
from lbagent.targets.bpf.echo_map import EchoMap
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.shadow import Shadow

NODE_MAPS = ("lb_device", "lb_nexthop", "lb_nexthop_id", "lb_vip", "lb_former_leader")  # of the node, not of a State
FOR_EVER = 1 << 62  # ticks until which ages are valid
_SMALL = 1 << 10


class PrivateMaps:
    """The maps of a State; a context manager. `state` has the ids in the maps, `all_fds` the maps that programs need."""

    def __init__(
        self, state: State, live: KernelMaps, paths: Callable[[Backend], PathInfo], snat: Collection[bytes]
    ) -> None:
        """Create and fill them; next hops and devices are those of `live`. Raises KernelError, ConfigError."""
        self.state = with_fresh_ids(state)
        sizes = _sizes(self.state, live.sizes)
        self._fds: dict[str, int] = {}
        try:
            for name, spec in pins.all_specs(sizes).items():
                if name not in GENERATION_MAPS and name not in NODE_MAPS:
                    nested = spec.type is MapType.HASH_OF_MAPS
                    self._fds[name] = pins.create_map(spec, self._fds["lb_maglev_inner"] if nested else 0)
            self.maps = KernelMaps("", sizes, self._fds)
            shadow = Shadow(sizes)
            planned = plan(self.state, shadow, paths, snat)
            done = apply(planned, self.maps, shadow)
            for frontend, error in done.failed.items():
                raise ConfigError(f"-f: {frontend.with_protocol()}: {error}")
            for error in EchoMap(self.maps).follow(planned, shadow, snat):
                raise error
            trust_ages(self.maps, FOR_EVER)
        except BaseException:
            self.close()
            raise
        self.all_fds = {**{name: live.fds[name] for name in NODE_MAPS if name in live.fds}, **self._fds}

    def close(self) -> None:
        """Free them."""
        pins.close_all(self._fds)

    def __enter__(self) -> Self:
        """Return them."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free them."""
        self.close()


def _sizes(state: State, live: Sizes) -> Sizes:
    """Return sizes with room for the State."""
    backends = max((each.id for each in state.backends.values()), default=0)
    return Sizes(
        flow4=_SMALL, flow6=_SMALL, snat4=_SMALL, snat6=_SMALL, affinity=_SMALL, spill=_SMALL, fragments=_SMALL,
        services=max(_SMALL, 2 * sum(map(frontend_codec.entry_count, state.services))),
        backends=min(max(_SMALL, 2 << backends.bit_length()), BACKEND_ID_LIMIT),
        source_ranges=max(_SMALL, 2 * sum(len(svc.source_ranges) for svc in state.services)),
        maglev_size=live.maglev_size,
    )  # fmt: skip
