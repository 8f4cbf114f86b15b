"""Whether the pins outlive the agent's mount namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.kernel.mounts import PRIVATE_ADVICE, is_private
from lbagent.maps.pins import pin_dir

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_mounts(components: AgentComponents) -> Iterator[Condition]:
    """Say so when the bpf file system is seen in this mount namespace alone."""
    root = pin_dir(components.config.bpffs)
    if is_private(root, mounted_here=components.mounted_bpffs):
        text = f"the bpf file system of {root} is in a private mount namespace: programs and maps end with the last process in it"
        yield Condition(ConditionName.PRIVATE_MOUNT, str(root), text, PRIVATE_ADVICE)
