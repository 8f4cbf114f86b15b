"""`explain` of the running agent: the dry programs are loaded when they are needed first, kept, and loaded again after a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lbagent.bpf.compiler import builder
from lbagent.bpf.hooks import AttachPointKind
from lbagent.bpf.load import program_settings
from lbagent.errors import TimedOut
from lbagent.kernel import jiffies
from lbagent.net.paths import PathFinder
from lbagent.targets.bpf import bpf_settings

if TYPE_CHECKING:  # what runs the programs is imported with the first request
    from lbagent.bpf.load.datapath import Datapath
    from lbagent.bpf.run.dry_programs import DryPrograms
    from lbagent.maps.lbmaps import LBMaps
    from lbagent.model.state import State
    from lbagent.targets.bpf.bpf_view import PlaneParts
    from lbagent.targets.bpf.explainer import Scene
    from lbagent.targets.explanation import ExplainRequest, Explanation


class ExplainedPlane:
    """The dry programs over the maps of a data plane. `busy` is held while its programs or maps change."""

    def __init__(self, plane: PlaneParts) -> None:
        self._plane = plane
        self.busy = asyncio.Lock()
        self._loaded: tuple[str, DryPrograms] | None = None  # of which programs in force

    async def explain(self, request: ExplainRequest, state: State | None) -> Sequence[Explanation]:
        """Return what would happen to each packet. Raises LbError; TimedOut before the programs are in force."""
        plane = self._plane
        if plane.datapath is None or plane.devices is None:
            raise TimedOut("the programs are not in force yet; `lbagent status` shows what the agent waits for")
        async with self.busy:
            datapath = plane.datapath.hooked
            if state is None:
                return await asyncio.to_thread(self._explain, request, datapath)
            return await asyncio.to_thread(self._explain_state, request, datapath, state)

    def _explain(self, request: ExplainRequest, datapath: Datapath) -> list[Explanation]:
        from lbagent.targets.bpf import explainer

        target = self._plane.target
        scene = self._scene(self.programs(datapath), self._plane.maps, target.current_state)
        return explainer.explain(scene, request.packets, request.device, request.hook)

    def _explain_state(self, request: ExplainRequest, datapath: Datapath, state: State) -> list[Explanation]:
        """Answer under another State: private maps are filled with it, for this request alone."""
        from lbagent.bpf.run.dry_programs import DryPrograms
        from lbagent.targets.bpf import explainer
        from lbagent.targets.bpf.private_maps import PrivateMaps

        plane = self._plane
        follower = plane.follower
        settings = bpf_settings.program_settings(plane.config, plane.extra_snat, plane.reply_ports)
        paths = PathFinder(follower.network, follower.settings, follower.table.index_of)
        with PrivateMaps(state, plane.maps, paths, follower.snat_addresses()) as private:
            config = program_settings.pack_config(settings, private.maps.sizes, datapath.seeds, jiffies.hz())
            programs = DryPrograms.load(
                builder.ensure_dry_artifact(), private.all_fds, config, log_dir=datapath.log_dir
            )
            try:
                scene = self._scene(programs, private.maps, private.state)
                return explainer.explain(scene, request.packets, request.device, request.hook)
            finally:
                programs.close()

    def _scene(self, programs: DryPrograms, maps: LBMaps, state: State) -> Scene:
        from lbagent.targets.bpf.explainer import Scene

        plane = self._plane
        return Scene(
            programs, maps, state, plane.target.generation, plane.follower.network, self.hooks(),
            plane.reply_ports,
        )  # fmt: skip

    def programs(self, datapath: Datapath) -> DryPrograms:
        """Return the dry programs of those in force; `busy` is held. Blocks for a second the first time. Raises LbError."""
        if self._loaded is not None and self._loaded[0] == datapath.key:
            return self._loaded[1]
        from lbagent.bpf.run.dry_programs import DryPrograms

        self.close()
        made = DryPrograms.load(
            builder.ensure_dry_artifact(), datapath.shared_maps, datapath.config, log_dir=datapath.log_dir
        )
        self._loaded = datapath.key, made
        return made

    def hooks(self) -> Mapping[str, list[str]]:
        """Return the words of the hooks that devices have, by device. After the devices are attached."""
        assert self._plane.devices is not None
        found: dict[str, list[str]] = {}
        for each in self._plane.devices.attached:
            if each.target.kind is AttachPointKind.DEVICE:
                found.setdefault(each.target.name, []).append(str(each.hook))
        return found

    def close(self) -> None:
        """Unload the programs."""
        if self._loaded is not None:
            self._loaded[1].close()
            self._loaded = None
