"""Deploys pool files on hosts: observes, plans, executes, and updates the state file after each step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from lbagent.apilb.files.pool_files import PoolFiles
from lbagent.apilb.files.state_file import Deployed, state_text
from lbagent.apilb.instance import Instance, InstanceKey
from lbagent.apilb.instance_plan import Pair, Sight, found_instance, is_left_by_us, paired, plan_steps
from lbagent.apilb.plan_records import GONE, Action, RecordedInstance, Step
from lbagent.errors import LbError, NotFound
from lbagent.kernel.private_folder import replace_private
from lbagent.kernel.regular_file import read_regular

Report = Callable[[Step, str], None]


class Deployment:
    """Pool files and the state of all pools, or of one; `errors` are the failures, in order."""

    def __init__(self, files: PoolFiles, *, state_path: str, pool: str = "", remove: bool = False) -> None:
        """`pool`: work on this one only. `remove`: the desired set of instances is empty."""
        self._files, self._state_path, self._remove = files, state_path, remove
        self._recorded = {each.key: each for each in files.deployed.recorded}
        chosen = PoolChoice(files, pool)
        self.pairs = paired(chosen.instances, chosen.recorded)
        self.errors: list[LbError] = []
        self.done = 0  # executed steps
        self.observed: dict[InstanceKey, Sight] = {}

    @property
    def wanted(self) -> list[Instance]:
        """The instances of the files."""
        return [pair.wanted for pair in self.pairs if pair.wanted]

    async def observe(self) -> None:
        """Read the state of every host."""
        from lbagent.apilb.hosts import observe

        self.observed = dict(await observe([pair.item for pair in self.pairs]))

    def plan(self, *, offline: bool = False) -> list[Step]:
        """Return the steps; `errors` has the reasons why other steps are unknown. `offline`: trust the state file."""
        pairs = self._removals() if self._remove else self.pairs
        steps, errors = plan_steps(pairs, None if offline else self.observed)
        self.errors += errors
        return steps

    def _removals(self) -> list[Pair]:
        """Return all recorded instances, and containers with our label that the state lacks."""
        found = []
        for wanted, recorded in self.pairs:
            if recorded:
                found.append(Pair(None, replace(recorded, ssh=wanted.ssh) if wanted else recorded))
            elif wanted:
                seen = self.observed[wanted.key]
                if isinstance(seen, LbError):
                    self.errors.append(seen)
                elif seen.status != GONE and is_left_by_us(wanted.mode, seen) and seen.ours:
                    found.append(Pair(None, found_instance(wanted, seen)))
        return found

    def refresh(self, steps: Iterable[Step]) -> None:
        """Record the current access to each host, for instances that need no step."""
        for step in steps:
            if step.action is Action.NONE and step.recorded and step.instance:
                self._learn(step, replace(step.recorded, ssh=step.instance.ssh))

    def save(self) -> None:
        """Write the state file if its text changed. Raises LbError."""
        data = self.state().encode()
        path = os.path.realpath(self._state_path)  # a symbolic link is kept
        try:
            if _content(path) != data:
                replace_private(path, data)
        except OSError as error:
            raise LbError(f"{self._state_path}: the state cannot be written: {error.strerror}") from None

    def state(self) -> str:
        """Return the text of the state."""
        deployed = replace(self._files.deployed, recorded=tuple(self._recorded.values()))
        return state_text(deployed, one_pool=self._files.one_pool)

    def export(self) -> str:
        """Return the text of the state of the selected pools only."""
        recorded = tuple(self._recorded[pair.recorded.key] for pair in self.pairs if pair.recorded)
        return state_text(Deployed(recorded=recorded), one_pool=self._files.one_pool)

    def take_as_found(self) -> None:
        """Record what the reachable hosts have."""
        for pair in self.pairs:
            seen = self.observed.get(pair.item.key)
            if isinstance(seen, LbError):
                self.errors.append(seen)
            elif pair.recorded and seen:
                text = pair.recorded.config_text if seen.file_text is None else seen.file_text
                found = {"container_id": seen.container_id, "status": seen.status, "config_text": text}
                self._recorded[pair.recorded.key] = replace(pair.recorded, **found)

    async def carry_out(self, steps: Sequence[Step], report: Report, *, pull: bool = False) -> None:
        """Execute steps, hosts in parallel, and write the state after each; failures are in `errors`."""
        from lbagent.apilb.hosts import PartlyDone, carry_out_all

        def done(step: Step, result: RecordedInstance | LbError | None) -> None:
            if isinstance(result, LbError):
                self.errors.append(result)
            if isinstance(result, PartlyDone):
                self._learn(step, result.recorded)
            elif not isinstance(result, LbError):
                self._learn(step, result)
                self.done += 1
            try:
                self.save()
            except LbError as error:
                self.errors.append(error)

        await carry_out_all([step for step in steps if step.action is not Action.NONE], report, done, pull=pull)

    @property
    def exit_code(self) -> int:
        """The exit code of the errors; 1 when other steps were done."""
        return int(bool(self.errors)) if self.done else exit_code(self.errors)

    def _learn(self, step: Step, recorded: RecordedInstance | None) -> None:
        if step.recorded:
            self._recorded.pop(step.recorded.key, None)
        if recorded:
            self._recorded[recorded.key] = recorded


class PoolChoice:
    """The contents of files and state for one pool, or for all. Raises NotFound for a pool in neither."""

    def __init__(self, files: PoolFiles, pool: str = "", name: str = "") -> None:
        self.instances = [each for each in files.instances if pool in ("", each.pool) and name in ("", each.name)]
        self.recorded = [each for each in files.deployed.recorded if pool in ("", each.pool)]
        if pool and pool not in files.pools and not self.recorded:
            names = sorted({*files.pools, *(each.pool for each in files.deployed.recorded)})
            raise NotFound(f"there is no pool {pool}, neither in the files nor in the state; {_recorded(names)}")
        if name and not self.instances:
            names = sorted({each.name for each in files.instances if pool in ("", each.pool)})
            where = f" in pool {pool}" if pool else ""
            raise NotFound(f"there is no instance {name}{where}; {_recorded(names)}")


def _recorded(names: Sequence[str]) -> str:
    return f"there are: {', '.join(names)}" if names else "there is none"


def _content(path: str) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None


def exit_code(errors: Iterable[LbError]) -> int:
    """Return the exit code if all errors have the same one, else 1; 0 without errors."""
    codes = {error.exit_code for error in errors}
    return codes.pop() if len(codes) == 1 else int(bool(codes))
