"""The programs of a batch in the kernel, loaded once; for a mutant only those programs are loaded again that hold its switch.

Children of this process share the maps of a world with it, so one world serves one child at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest import mock

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.artifact import Artifact, Program
from lbagent.bpf.load import loader
from lbagent.bpf.load.constants import with_constants
from lbagent.bpf.load.loader import Generation
from lbagent.kernel import bpf_map
from lbagent.maps.layout import U32
from lbagent.maps.pins import create_map
from lbagent.maps.specs import MapSpec, MapType
from tests.mutants import c_build
from tests.packet import conftest, harness
from tests.packet.world import World

PLACES_MAX = 4096


@dataclass
class Loaded:
    """A world with the programs of a batch, every switch off."""

    world: World
    generation: Generation
    artifact: Artifact
    config: bytes

    def changed_programs(self, number: int) -> list[str]:
        """Return the programs that hold a switch."""
        return [
            name
            for name, program in self.artifact.programs.items()
            if number in c_build.words(program, c_build.SWITCH_WORD)
        ]

    def turn_on(self, number: int) -> None:
        """Load the programs of a mutant in the place of the others; for a child, which ends with them. Raises VerifierError."""
        fds = loader.with_old_maps({**self.world.maps.fds, **self.generation.maps})  # type: ignore[attr-defined]
        for name in self.changed_programs(number):
            program = with_constants(c_build.with_mutant(self.artifact.programs[name], number), self.config)
            self.generation.programs[name] = loader.load_program(program, fds)
        self.fill_calls(number)

    def fill_calls(self, number: int) -> None:
        """Put the programs of this process with this switch into the tail call arrays, which a child may have changed."""
        changed = set(self.changed_programs(number))
        for (calls, slot), name in loader.call_slots(self.artifact.programs).items():
            if name in changed:
                bpf_map.map_update(
                    self.generation.maps[calls], U32.pack(slot), U32.pack(self.generation.programs[name])
                )

    def clean(self) -> None:
        """Empty every map: the rows a child wrote are known to that child only."""
        maps = self.world.maps
        for name, spec in maps.specs.items():
            if spec.type in {MapType.HASH, MapType.LRU_HASH, MapType.LPM_TRIE}:
                maps.delete_many(name, [key for key, _ in maps.items(name)])
        for name in ("lb4_maglev", "lb6_maglev"):
            maps.delete_maglev(name, list(maps.maglev(name)))


@contextmanager
def loaded_world(artifact: Artifact) -> Iterator[Loaded]:
    """Load a batch with every switch off. Raises VerifierError."""
    found: list[tuple[Generation, bytes]] = []

    def load(made: Artifact, fds: dict[str, int], config: bytes) -> Generation:
        generation = loader.load_generation(made, fds, config)
        found.append((generation, config))
        return generation

    with (
        mock.patch.object(harness, "load_generation", load),
        harness.open_world(artifact=variant(artifact, None)) as world,
    ):
        generation, config = found[0]
        yield Loaded(world, generation, artifact, config)


def variant(artifact: Artifact, number: int | None) -> Artifact:
    """Return the artifact with one switch on."""
    return _each(artifact, lambda program: c_build.with_mutant(program, number))


def marked(artifact: Artifact, map_fd: int) -> Artifact:
    """Return the artifact whose marks go to a map."""
    return _each(artifact, lambda program: c_build.with_marks(program, map_fd))


def _each(artifact: Artifact, change: Callable[[Program], Program]) -> Artifact:
    return replace(artifact, programs={name: change(program) for name, program in artifact.programs.items()})


def serve(artifact: Artifact, world: World | None = None) -> None:
    """Let every test of this process that loads programs have these; `world` is what the tests with the usual settings get."""
    builder.ensure_artifact = lambda *_: artifact  # type: ignore[assignment]
    if world is not None:
        conftest.open_world = lambda: nullcontext(world)  # type: ignore[assignment]


def serve_loaded(artifact: Artifact) -> None:
    """The same, and load the programs once to see that the verifier takes them. Raises VerifierError."""
    serve(artifact)
    with harness.open_world(artifact=artifact):
        pass


class PlaceMap:
    """A map with one byte for each place, set by the programs that come there."""

    def __init__(self) -> None:
        self.fd = create_map(MapSpec("places", MapType.ARRAY, 4, PLACES_MAX, 1))

    def take(self) -> frozenset[int]:
        """Return the places that were executed since the last call."""
        value = bpf_map.map_lookup(self.fd, bytes(4), PLACES_MAX) or b""
        bpf_map.map_update(self.fd, bytes(4), bytes(PLACES_MAX))
        return frozenset(index for index, byte in enumerate(value) if byte)
