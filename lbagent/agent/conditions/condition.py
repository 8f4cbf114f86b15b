"""A condition: something that is wrong now, in words an operator can act on. `lbagent status` ends with 1 while a fault holds."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """Whose a condition is. The words are those of `status -o json` and of the metric `lbagent_conditions`: never rename one."""

    DEGRADED = "degraded"  # of objects that anyone may write: a dead endpoint, a refused field; the node does its work
    FAULT = "fault"  # of the node, the agent or what it depends on: an operator has to look


class ConditionName(StrEnum):
    """What can be wrong. The words are those of the metric `lbagent_condition` and of docs/operations.md: never rename one."""

    PRIVATE_MOUNT = "private-mount"
    BPFFS_UNMOUNTED = "bpffs-unmounted"
    PIN_MISSING = "pin-missing"
    LINK_DETACHED = "link-detached"
    DEVICE_MISSING = "device-missing"
    DEVICE_NOT_ATTACHED = "device-not-attached"
    FORWARDING_OFF = "forwarding-off"
    REVERSE_PATH_STRICT = "reverse-path-strict"
    NEXT_HOP_UNRESOLVED = "next-hop-unresolved"
    PATH_UNUSABLE = "path-unusable"
    NEIGHBOURS_NOT_KEPT = "neighbours-not-kept"
    FRAMES_NOT_TAKEN = "frames-not-taken"
    MAP_NEARLY_FULL = "map-nearly-full"
    TABLE_OVERFLOWS = "table-overflows"
    SWEEP_FAILED = "sweep-failed"
    SNAT_PORTS_SHORT = "snat-ports-short"
    SNAT_ADDRESS_MISSING = "snat-address-missing"
    DROPS_GROW = "drops-grow"
    ADDRESS_CONFLICT = "address-conflict"
    PORT_NOT_OPEN = "port-not-open"
    ANNOUNCING_FAILED = "announcing-failed"
    TARGET_FAILED = "target-failed"
    SETTING_NOT_IN_FORCE = "setting-not-in-force"
    STATE_DIR_UNUSABLE = "state-dir-unusable"
    COPIES_NOT_WRITTEN = "copies-not-written"
    SOURCE_UNTRUSTED = "source-untrusted"
    OBJECTS_REFUSED = "objects-refused"
    OBJECTS_MISMATCH = "objects-mismatch"
    FRONTEND_CONTESTED = "frontend-contested"
    CHECK_FAILED = "check-failed"


# Every other name is a fault.
_DEGRADED = frozenset(
    {
        ConditionName.NEXT_HOP_UNRESOLVED,
        ConditionName.PATH_UNUSABLE,
        ConditionName.SNAT_PORTS_SHORT,
        ConditionName.OBJECTS_REFUSED,
        ConditionName.OBJECTS_MISMATCH,
    }
)


class Condition(Struct, frozen=True):
    """One thing that is wrong: what is so, and what to do about it.

    `subject` tells conditions of one name apart: a device, a map, an address. It does not change while the condition holds.
    `mended`: the agent has put it right already. `own_severity`: where it is not that of the name.
    """

    name: ConditionName
    subject: str
    text: str
    remedy: str = ""
    mended: bool = False
    own_severity: Severity | None = None

    @property
    def severity(self) -> Severity:
        """Whether it is a fault."""
        return self.own_severity or (Severity.DEGRADED if self.name in _DEGRADED else Severity.FAULT)
