"""The datapath object of the agent: one generation of programs, its devices, and changes of both.

The operations are start, attach, reload and remove; each leaves a serving datapath if it fails half-way.
Blocking (netlink, the verifier): from asyncio, call in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lbagent.bpf.compiler import artifact as artifacts
from lbagent.bpf.hooks import CONTEXTS, SOCK_CONTEXT, TC_EGRESS, contexts_of
from lbagent.bpf.load import attach, generation, program_settings
from lbagent.bpf.load.attach import Attachment
from lbagent.bpf.load.devices import devices
from lbagent.bpf.load.loader import Generation, add_programs, lacking, load_generation, require_kernel
from lbagent.bpf.load.tail_call_check import has_empty_slots
from lbagent.kernel import jiffies

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from lbagent.bpf.compiler.artifact import Artifact
    from lbagent.bpf.hooks import Hook
    from lbagent.bpf.load.program_settings import ProgramSettings, Seeds
    from lbagent.maps.specs import Sizes


@dataclass
class Datapath:
    """Programs in force under `root` (`BPFFS/v1`) and the hooks they are attached to."""

    root: Path
    artifact: Artifact
    generation: Generation
    key: str
    seeds: Seeds
    reused: bool  # True: the pinned programs were current, nothing was loaded
    sizes: Sizes  # of the maps that the programs use
    shared_maps: Mapping[str, int]  # against which later programs are loaded
    config: bytes  # the settings record of the programs
    attachments: list[Attachment] = field(default_factory=list)
    fall_back: bool = False  # --attach auto: tc where a NIC has no native XDP
    log_dir: Path | None = None
    interim: Datapath | None = None  # of a change of map sizes that stopped half-way: on the hooks until it is finished

    @property
    def hooked(self) -> Datapath:
        """Return the datapath whose programs belong on the hooks and in the pins."""
        return self.interim or self

    @property
    def in_force(self) -> list[tuple[Mapping[str, int], Sizes]]:
        """Return (programs, sizes of their maps): two while a change of map sizes is half done, the new maps' second."""
        return [(each.programs, each.sizes) for each in (self, self.interim) if each is not None]

    @property
    def programs(self) -> Mapping[str, int]:
        """Descriptors by name: the entry programs of hooks in use, and those the agent runs (sweep4, sweep6, ...)."""
        return self.generation.programs

    def attach(
        self, mode: str, names: Sequence[str], pod_patterns: Sequence[str], cgroup: str = ""
    ) -> list[Attachment]:
        """Attach to what `--attach`, `--device` and `--pod-device` name; call again when devices come and go.

        `cgroup` is that of the socket programs; ''  is none. Raises NotFound, Conflict, Unsupported, KernelError.
        """
        present = attach.with_former_names(self.root, devices())
        wanted = attach.wanted_attachments(mode, names, pod_patterns, present) + attach.socket_attachments(cgroup)
        self.fall_back = mode == "auto"
        self.hooked.require(item.hook for item in wanted)
        self.attachments = attach.attach(self.root, wanted, self.hooked.programs, fall_back=self.fall_back)
        return self.attachments

    def require(self, hooks: Iterable[Hook]) -> None:
        """Load the programs of these hooks that no hook needed before, beside those in force, which stay.

        Raises the errors of loading; then nothing has changed.
        """
        self.require_contexts(contexts_of(hooks))

    def require_contexts(self, contexts: Collection[str]) -> None:
        """Do the same for all hooks of these contexts."""
        missing = lacking(self.artifact, contexts, self.generation)
        if missing:
            add_programs(self.generation, missing, self.shared_maps, self.config, log_dir=self.log_dir)
            generation.add_pins(self.root, self.generation, missing)

    def attached_devices(self) -> dict[str, int]:
        """Return the interface indexes of the devices that got programs, by the names they had then."""
        return attach.attached_indexes(self.root)

    def reload(
        self, artifact: Artifact, shared_maps: Mapping[str, int], sizes: Sizes, options: ProgramSettings
    ) -> None:
        """Replace the programs in place: other settings, other sizes, another artifact. No packet is lost.

        Raises the errors of loading; then the old programs continue.
        """
        artifact = wanted_programs(artifact, options)
        config = program_settings.pack_config(options, sizes, self.seeds, jiffies.hz())
        key = generation.generation_key(artifact, shared_maps, config)
        if key == self.key:
            return
        contexts = contexts_of(item.hook for item in self.attachments) | contexts_in_use(self.root)
        new = load_generation(artifact, shared_maps, config, contexts=contexts, log_dir=self.log_dir)
        generation.install(self.root, key, new, self._swap)
        self.generation.close()
        self.artifact, self.generation, self.key, self.reused = artifact, new, key, False
        self.sizes, self.shared_maps, self.config = sizes, dict(shared_maps), config

    def _swap(self, new: Generation) -> None:
        """Put the new entry programs on every attached hook, also on those that another agent process attached."""
        alive = attach.still_present(self.root, self.attachments or attach.attached(self.root))
        alive = [item for item in alive if item.hook.program in new.programs]  # the others are removed: --no-socket-lb
        if alive:
            attach.attach(self.root, alive, new.programs, fall_back=self.fall_back)

    def switch_to(self, other: Datapath) -> None:
        """Continue with the programs of `other`, which are installed already."""
        self.close()
        self.interim = None
        self.artifact, self.generation, self.key, self.reused = other.artifact, other.generation, other.key, False
        self.sizes, self.shared_maps, self.config = other.sizes, other.shared_maps, other.config

    def leave_hooks_to(self, interim: Datapath) -> None:
        """Keep the programs of `interim`, installed at least in part, on the hooks: only they use all maps with flows."""
        if self.interim is not None:
            self.interim.close()
        self.interim = interim

    def install(self, *, lead_over: bool = False) -> None:
        """Make these loaded programs the ones that are pinned and attached.

        `lead_over`: those in force have the same source, and do not search the table in which these make new flows.
        """
        generation.install(self.root, self.key, self.generation, self._lead_over_and_swap if lead_over else self._swap)

    def _lead_over_and_swap(self, new: Generation) -> None:
        generation.lead_over(self.root, self.artifact.programs, new.programs)
        self._swap(new)

    def close(self) -> None:
        """Close the descriptors. Programs, links and pins stay and continue to serve."""
        self.generation.close()
        if self.interim is not None:
            self.interim.close()


def wanted_programs(artifact: Artifact, options: ProgramSettings) -> Artifact:
    """Return the artifact, without socket programs if they are disabled."""
    if options.netns_cookie:
        return artifact
    kept = {name: each for name, each in artifact.programs.items() if each.context != SOCK_CONTEXT.name}
    return replace(artifact, programs=kept)


def contexts_in_use(root: Path) -> frozenset[str]:
    """Return the contexts of what is attached under `root`, of socket programs, and of tc, which every device and pod has."""
    return contexts_of([TC_EGRESS, *(item.hook for item in attach.attached(root))]) | {SOCK_CONTEXT.name}


def load(
    root: Path, artifact: Artifact, shared_maps: Mapping[str, int], sizes: Sizes, options: ProgramSettings,
    *, hooks: Collection[Hook] | None = None, old: Sizes | None = None, reuse: bool = False, log_dir: Path | None = None,
) -> Datapath:  # fmt: skip
    """Load the programs of `artifact` and attach nothing; with `reuse`, take the pinned ones if they are the same.

    `hooks` are those that are to be attached: other programs than these and the attached ones run are not loaded. None: load
    everything. `old`: load the programs that move flows from maps of these sizes, which `shared_maps` has by their names in
    OLD_MAPS. The seeds are those of the flow tables under `root`. Raises as `start`.
    """
    require_kernel()
    artifacts.check(artifact, "the built programs")
    artifact = wanted_programs(artifact, options)
    seeds = generation.pinned_seeds(root) or program_settings.Seeds.fresh()
    config = program_settings.pack_config(options, sizes, seeds, jiffies.hz(), old)
    key = generation.generation_key(artifact, shared_maps, config)
    found = generation.reuse_pinned(root, key, artifact) if reuse else None
    if found is not None and has_empty_slots(artifact.programs, found):
        found.close()  # a tail call was removed: the programs are loaded again
        found = None
    contexts = frozenset(CONTEXTS) if hooks is None else contexts_of(hooks) | contexts_in_use(root)
    new = found or load_generation(artifact, shared_maps, config, contexts=contexts, log_dir=log_dir)
    made = Datapath(
        root, artifact, new, key, seeds, reused=bool(found), sizes=sizes, shared_maps=dict(shared_maps), config=config,
        log_dir=log_dir,
    )  # fmt: skip
    try:
        made.require_contexts(contexts)
    except BaseException:
        made.close()
        raise
    return made


def start(
    root: Path, artifact: Artifact, shared_maps: Mapping[str, int], sizes: Sizes, options: ProgramSettings,
    *, hooks: Collection[Hook] | None = None, log_dir: Path | None = None,
) -> Datapath:  # fmt: skip
    """Put the programs of `artifact` in force under `root`: reuse the pinned ones if they are the same, else load.

    `shared_maps` are the descriptors of maps/kernel_maps.py by name. Devices to which an earlier process attached programs get
    the new ones. `hooks`: as `load`. Raises Unsupported, LayoutMismatch, VerifierError, KernelError.
    """
    made = load(root, artifact, shared_maps, sizes, options, hooks=hooks, reuse=True, log_dir=log_dir)
    if not made.reused:
        made.install()
    return made


def remove(root: Path) -> list[Attachment]:
    """Detach everything and take the pins of programs away; works without an agent. Returns the detached hooks."""
    gone = attach.detach_all(root)
    generation.remove(root)
    return gone
