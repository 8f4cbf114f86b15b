"""`lbagent capture`: packets before and after the load balancer, for people, and for Wireshark and tcpdump."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from lbagent.cli.followed_agent import FollowedAgent
from lbagent.cli.options import Duration, filter_options, pins_option, socket_option, state_dir_option
from lbagent.partial_imports import put_in_place

if TYPE_CHECKING:
    from lbagent.maps.flow_filter import FlowFilter

POLL_S = 0.02  # the programs wake no reader; the rings hold a third of a second of 100,000 packets a second
REPORT_S = 1.0  # between two reports of losses


@click.command()
@filter_options
@click.option(
    "-w", "--write", "path", default="", metavar="FILE.pcapng|-", help="Write pcapng to FILE, mode 0600, or stdout."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N packets that arrived.")
@click.option("--duration", "duration_s", type=Duration(), metavar="TIME", help="End after this time, like 30s.")
@click.option("--overwrite", is_flag=True, help="Replace FILE also if it is no capture of lbagent.")
@pins_option
@socket_option
@state_dir_option
def capture(
    *,
    wanted: FlowFilter,
    path: str,
    count: int | None,
    duration_s: float | None,
    overwrite: bool,
    bpffs: str,
    socket: str,
    state_dir: str,
) -> None:
    """Capture packets before and after the load balancer, until it is interrupted. Needs root.

    While it runs, the agent has programs in force that record every packet of Services; it takes them back at the end, also of a
    capture that is killed.

    Without -w a line for each packet. With -w a pcapng file has two packets for each: as it arrived, and as it left. Their comments
    have verdict, reason, service and backend. A packet has its first 96 bytes up to the end of the L4 header, never payload; its
    original length is kept. The filters are those of `flow list`: the client is the source of the packet, the frontend its
    destination; --state and --idle-over select packets whose flow is so in the flow table when the packet is read.

    Lost packets are reported on stderr, and in the statistics of the file's first interface. If the disk is full the command ends
    with 1; the packets that were written until then are readable.

    Exit code 1: FILE cannot be written. 2: FILE is a folder, or a file that is no capture of lbagent. 3: there are no events,
    because no agent has run, or it runs with --events 0. 5: no agent answers.
    """
    put_in_place("lbagent.model")
    from lbagent.cli.capture_stream import CaptureStream
    from lbagent.cli.output_file import require_writable
    from lbagent.cli.running_capture import InFile, Lines, RunningCapture
    from lbagent.cli.sampled_packets import SampledPackets
    from lbagent.maps.event_reader import EventReader
    from lbagent.maps.pinned_maps import PinnedMaps
    from lbagent.targets.bpf.capture_blocks import is_capture
    from lbagent.targets.bpf.captured_packets import CapturedPackets
    from lbagent.targets.bpf.event_flows import EventFlows
    from lbagent.targets.bpf.event_rows import EventRows

    if path and path != "-":
        require_writable(path, "-w", "capture", is_capture, overwrite=overwrite)
    EventReader(bpffs).close()  # raises where there are no events
    agent = FollowedAgent(socket, state_dir, wanted.service, reports=False)
    with ExitStack() as opened:
        agent.sampled = opened.enter_context(SampledPackets(socket, frames_after=True))
        reader = opened.enter_context(EventReader(bpffs, last=0))
        maps = opened.enter_context(PinnedMaps(bpffs))
        flows = EventFlows.of(bpffs, wanted)
        if flows:
            opened.enter_context(flows)
        packets = CapturedPackets(EventRows(maps, agent.name_of), wanted, flows)
        stream = CaptureStream(path, "-w", is_capture, overwrite=overwrite) if path else None
        shown = InFile(stream) if stream else Lines(packets)
        RunningCapture(reader, agent, packets, shown, count=count, duration_s=duration_s).run()
