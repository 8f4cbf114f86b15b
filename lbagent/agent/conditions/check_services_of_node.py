"""Whether what the agent does beside the maps is done: announcing, other targets, settings, its state folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.agent.operator_states import unwritable
from lbagent.api.target_rows import problem_of_target
from lbagent.sources.folder.source import FolderSource

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_announcing(components: AgentComponents) -> Iterator[Condition]:
    """Name what stands in the way of announcing addresses."""
    for subject, text in components.announcer.faults() if components.announcer else ():
        yield Condition(ConditionName.ANNOUNCING_FAILED, subject, text, "`lbagent vip list` shows what is announced")


def check_targets(components: AgentComponents) -> Iterator[Condition]:
    """Name each target that is not brought to the State; single frontends of the maps have lines of their own."""
    for runner in components.loop.runners:
        target, is_bpf = runner.target, runner.target is components.bpf
        text = components.bpf.error if is_bpf else problem_of_target(runner)
        if text:
            remedy = "what was written before stays in force; it is tried again"
            yield Condition(ConditionName.TARGET_FAILED, target.name, f"target {target.name}: {text}", remedy)


def check_settings(components: AgentComponents) -> Iterator[Condition]:
    """Name each setting that could not be put in force."""
    for subject, text in components.problems.items():
        yield Condition(ConditionName.SETTING_NOT_IN_FORCE, subject, text, "mend the setting, and send SIGHUP")


def check_state_dir(components: AgentComponents) -> Iterator[Condition]:
    """Say so when nothing can be written below the state folder."""
    folder = components.config.state_dir
    if reason := unwritable(folder):
        text = f"--state-dir {folder} {reason}: set-state is refused, and no copies of good manifests are kept"
        yield Condition(ConditionName.STATE_DIR_UNUSABLE, folder, text, "make it a folder that the agent may write to")


def check_copies(components: AgentComponents) -> Iterator[Condition]:
    """Name the folder whose copies of good manifests cannot be brought up to date, and the file of who has which frontend."""
    if components.owners and (text := components.owners.failure):
        remedy = "make room on that file system, or make it writable; it is tried again"
        yield Condition(ConditionName.COPIES_NOT_WRITTEN, components.owners.path, text, remedy)
    for source in components.sources:
        if isinstance(source, FolderSource) and (text := source.copies_failure()):
            folder = source.copies_folder
            remedy = "make room on that file system, or make it writable; it is tried again"
            yield Condition(ConditionName.COPIES_NOT_WRITTEN, folder, text, remedy)
