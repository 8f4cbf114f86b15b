"""The table of checks. A new one is a line here."""

from __future__ import annotations

from collections.abc import Sequence

from lbagent.agent.conditions.check_capacity import check_maps, check_sweeps, check_tables
from lbagent.agent.conditions.check_conflicts import check_conflicts
from lbagent.agent.conditions.check_contests import check_contests
from lbagent.agent.conditions.check_devices import check_devices, check_outputs, check_reverse_path
from lbagent.agent.conditions.check_drops import DropsCheck
from lbagent.agent.conditions.check_forwarding import check_forwarding
from lbagent.agent.conditions.check_ids import check_ids
from lbagent.agent.conditions.check_links import check_links
from lbagent.agent.conditions.check_paths import NextHopsCheck, PathsCheck
from lbagent.agent.conditions.check_pins import check_mounts, check_pins
from lbagent.agent.conditions.check_ports import check_ports
from lbagent.agent.conditions.check_sending import check_frames, check_neighbours
from lbagent.agent.conditions.check_services_of_node import (
    check_announcing,
    check_copies,
    check_settings,
    check_state_dir,
    check_targets,
)
from lbagent.agent.conditions.check_snat_ports import check_snat_addresses, check_snat_ports
from lbagent.agent.conditions.check_sources import check_objects, check_sources
from lbagent.agent.conditions.monitor import Check


def every_check(*, has_bpf: bool = True) -> Sequence[Check]:
    """Return the checks, in the order in which they are made: first what is mended, for others may follow from it."""
    return (*(_of_bpf() if has_bpf else ()), *_of_the_agent())


def _of_bpf() -> Sequence[Check]:
    """Return those of the BPF data plane, its devices and its paths."""
    return (
        check_mounts,
        check_pins,
        check_links,
        check_devices,
        check_outputs,
        check_forwarding,
        check_reverse_path,
        NextHopsCheck(),
        PathsCheck(),
        check_neighbours,
        check_frames,
        check_maps,
        check_ids,
        check_tables,
        check_sweeps,
        check_snat_ports,
        check_snat_addresses,
        DropsCheck(),
    )


def _of_the_agent() -> Sequence[Check]:
    return (
        check_conflicts,
        check_ports,
        check_announcing,
        check_targets,
        check_settings,
        check_state_dir,
        check_copies,
        check_sources,
        check_objects,
        check_contests,
    )
