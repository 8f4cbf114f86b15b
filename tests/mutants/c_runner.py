"""Tries mutants of C: one build with marks finds the places of each test, then batch after batch is compiled, loaded and tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from lbagent.bpf.compiler.artifact import Artifact
from lbagent.bpf.compiler.c_source import INCLUDE_DIR, UNITS
from lbagent.errors import CompileError, VerifierError
from tests.mutants import c_build, c_mutants, packet_worlds
from tests.mutants.children import Child, Ended, Pool
from tests.mutants.mutant import Fate, Mutant, Outcome
from tests.mutants.packet_worlds import Loaded, PlaceMap
from tests.mutants.remembered import Remembered

if TYPE_CHECKING:
    from tests.mutants.runner import Run
    from tests.mutants.trial import Surveys

BATCH = 60  # mutants in one compilation: more of them need more stack and instructions than programs may have
COMPILE_S = 1200
Batch = dict[int, Mutant]


class CRun:
    """Tries mutants of C with the packet tests."""

    def __init__(self, run: Run, items: list[pytest.Item]) -> None:
        self.run_, self.items = run, items
        self.trees = c_mutants.read_trees(sorted(INCLUDE_DIR.rglob("*.h")))
        self.first_places: dict[str, int] = {}
        count = 0
        for path, tree in self.trees.items():
            self.first_places[path] = count
            count += len(c_mutants.place_nodes(tree))
        assert count <= packet_worlds.PLACES_MAX

    def run(self, mutants: Mapping[int, Mutant]) -> None:
        """Try them all."""
        surveys = self._surveyed()
        wanted: Batch = {}
        for number, mutant in mutants.items():
            if surveys.tests_of(mutant.path, self._place(mutant)):
                wanted[number] = mutant
            else:
                self.run_.report(Outcome(mutant, Fate.UNREACHED))
        alone: Batch = {}
        todo = _split(wanted, -(-len(wanted) // BATCH))
        compiling = self._compiling(todo.pop()) if todo else None
        while compiling:
            batch, ended = compiling[0], compiling[1].wait()
            compiling = self._compiling(todo.pop()) if todo else None
            if ended.result is None:
                raise RuntimeError(f"a batch could not be compiled:\n{ended.error}")
            made, left = ended.result
            alone.update({number: batch[number] for number in left})
            for artifact, numbers in made:
                if not self._try_batch(surveys, artifact, {number: batch[number] for number in numbers}, alone):
                    parts = _split({number: batch[number] for number in numbers}, 2)
                    todo += parts if len(numbers) > 1 else []
                    alone.update(parts[0] if len(numbers) == 1 else {})
            if not compiling and todo:
                compiling = self._compiling(todo.pop())
        self._try_alone(surveys, alone)

    def _surveyed(self) -> Surveys:
        def prepare() -> Callable[[], frozenset[int]]:
            places = PlaceMap()
            packet_worlds.serve(packet_worlds.marked(artifact, places.fd))
            return places.take

        remembered = Remembered(self.run_.remember)
        known = remembered.known(self.items)
        if len(known) < len(self.items):
            artifact = self._marked()
        return self.run_.surveyed("C", self.items, prepare, known, remembered.note)

    def _marked(self) -> Artifact:
        """Compile the headers with a mark at each place."""
        texts = {path: c_mutants.marked_text(tree, self.first_places[path]) for path, tree in self.trees.items()}
        ended = Child.start(lambda: c_build.compile_headers(texts), COMPILE_S).wait()
        if ended.result is None:
            raise RuntimeError(f"the headers with marks could not be compiled:\n{ended.error}")
        made: Artifact = ended.result
        ended = Child.start(lambda: _loads_with_marks(made), COMPILE_S).wait()
        if (
            ended.result is None
        ):  # else each test would fail, and every mutant would seem to be one that no test comes to
            raise RuntimeError(f"the headers with marks could not be loaded:\n{ended.error}")
        return made

    def _place(self, mutant: Mutant) -> int | None:
        return c_mutants.place_before(self.trees[mutant.path], self.first_places[mutant.path], mutant.position)

    def _compiling(self, batch: Batch) -> tuple[Batch, Child]:
        return batch, Child.start(lambda: self._compiled(batch), COMPILE_S)

    def _compiled(self, batch: Batch) -> tuple[list[tuple[Artifact, list[int]]], list[int]]:
        """Compile a batch, in parts where it must be; return the artifacts with their mutants, and the mutants that fit nowhere."""
        made, left, todo = [], [], [batch]
        while todo:
            part = todo.pop()
            try:
                made.append((c_build.compile_batch(self.trees, part), list(part)))
            except CompileError as error:
                bad = c_build.culprits(error, part)
                rest = {number: mutant for number, mutant in part.items() if number not in bad}
                if bad:
                    left += bad
                    todo += [rest] if rest else []
                elif len(part) > 1:
                    todo += _split(part, 2)
                else:
                    left += part
        return made, left

    def _try_batch(self, surveys: Surveys, artifact: Artifact, batch: Batch, alone: Batch) -> bool:
        """Try the mutants of a batch; those that need a build of their own go to `alone`. Returns False if its programs do not load."""
        self.run_.say(f"C: {len(batch)} mutants in one build")
        with ExitStack() as stack:
            try:
                worlds = [stack.enter_context(packet_worlds.loaded_world(artifact)) for _ in range(self.run_.jobs)]
            except VerifierError as error:
                self.run_.say(f"too much for one build: {str(error).splitlines()[-2].strip()}")
                return False
            pool = Pool(self.run_.jobs)
            for number, mutant in batch.items():
                self._try(pool, surveys, worlds, number, mutant, alone)
            pool.finish()
        return True

    def _try(
        self, pool: Pool, surveys: Surveys, worlds: list[Loaded], number: int, mutant: Mutant, alone: Batch
    ) -> None:
        names = surveys.tests_of(mutant.path, self._place(mutant))

        def start(slot: int) -> Child:
            loaded = worlds[slot]

            def prepare() -> None:
                packet_worlds.serve(packet_worlds.variant(loaded.artifact, number), loaded.world)
                loaded.turn_on(number)

            return self.run_.start(surveys, names, prepare)

        def done(ended: Ended, slot: int) -> None:
            worlds[slot].fill_calls(number)
            worlds[slot].clean()
            if ended.result is not None and ended.result.refused:
                alone[number] = mutant
            else:
                self.run_.finished(surveys, mutant, ended)

        pool.add(start, done)

    def _try_alone(self, surveys: Surveys, batch: Batch) -> None:
        """Try mutants that cannot stand behind a switch: each a build of its own."""
        for mutant in batch.values():
            ended = Child.start(lambda mutant=mutant: self._compiled_alone(mutant), COMPILE_S).wait()
            if ended.result is None:
                fate = Fate.NOT_COMPILED if "CompileError" in ended.error else Fate.KILLED
                self.run_.report(Outcome(mutant, fate, ended.error.strip().splitlines()[-1]))
                continue
            names = surveys.tests_of(mutant.path, self._place(mutant))
            prepare = lambda artifact=ended.result: packet_worlds.serve_loaded(artifact)  # noqa: E731
            self.run_.finished(surveys, mutant, self.run_.start(surveys, names, prepare).wait())

    def _compiled_alone(self, mutant: Mutant) -> Artifact:
        c_build.compile_alone(self.trees, mutant, UNITS[:1])
        return c_build.compile_alone(self.trees, mutant)


def _loads_with_marks(artifact: Artifact) -> bool:
    packet_worlds.serve_loaded(packet_worlds.marked(artifact, PlaceMap().fd))
    return True


def _split(batch: Batch, count: int) -> list[Batch]:
    """Return the mutants in parts of one size, neighbours in different ones: together they might need too much stack."""
    numbers = list(batch)
    return [{number: batch[number] for number in numbers[first::count]} for first in range(count)]
