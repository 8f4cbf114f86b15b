"""A condition: something that is wrong now, in words an operator can act on. `lbagent status` ends with 1 while there is one."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class ConditionName(StrEnum):
    """What can be wrong. The words are those of the metric `lbagent_condition` and of docs/operations.md: never rename one."""

    PRIVATE_MOUNT = "private-mount"
    BPFFS_UNMOUNTED = "bpffs-unmounted"
    PIN_MISSING = "pin-missing"
    LINK_DETACHED = "link-detached"
    DEVICE_MISSING = "device-missing"
    DEVICE_NOT_ATTACHED = "device-not-attached"
    FORWARDING_OFF = "forwarding-off"
    NEXT_HOP_UNRESOLVED = "next-hop-unresolved"
    PATH_UNUSABLE = "path-unusable"
    NEIGHBOURS_NOT_KEPT = "neighbours-not-kept"
    FRAMES_NOT_TAKEN = "frames-not-taken"
    MAP_NEARLY_FULL = "map-nearly-full"
    TABLE_OVERFLOWS = "table-overflows"
    SNAT_PORTS_SHORT = "snat-ports-short"
    SNAT_ADDRESS_MISSING = "snat-address-missing"
    DROPS_GROW = "drops-grow"
    ADDRESS_CONFLICT = "address-conflict"
    PORT_NOT_OPEN = "port-not-open"
    SOURCE_UNTRUSTED = "source-untrusted"
    OBJECTS_REFUSED = "objects-refused"
    CHECK_FAILED = "check-failed"


class Condition(Struct, frozen=True):
    """One thing that is wrong: what is so, and what to do about it.

    `subject` tells conditions of one name apart: a device, a map, an address. `mended`: the agent has put it right already.
    """

    name: ConditionName
    subject: str
    text: str
    remedy: str = ""
    mended: bool = False
