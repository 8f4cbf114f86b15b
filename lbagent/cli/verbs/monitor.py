"""`lbagent monitor`: events of the programs as they happen, from the pins; works without an agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from lbagent.cli import output
from lbagent.cli.followed_agent import FollowedAgent
from lbagent.cli.options import filter_options, form_option, pins_option, socket_option, state_dir_option
from lbagent.errors import ConfigError, LbError
from lbagent.partial_imports import put_in_place

if TYPE_CHECKING:
    from lbagent.maps.event_reader import Event, EventReader
    from lbagent.maps.flow_filter import FlowFilter
    from lbagent.targets.bpf.event_lines import EventLines

POLL_S = 0.1  # the programs wake no reader
BUSY = 2000  # events of a moment after which the next ones are read at once
REPORT_S = 1.0  # between two reports of lost events
EVENT_SAMPLE = 64


@click.command()
@filter_options
@click.option("--reason", default="", metavar="R,…", help="Only events with these reasons.")
@click.option(
    "--verdict", default="", metavar="V,…", help="Only events with these verdicts: forward, local, answer, drop, pass."
)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Begin with the last N events that are kept.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N events.")
@click.option(
    "--event-sample",
    type=click.IntRange(0),
    default=EVENT_SAMPLE,
    show_default=True,
    metavar="N",
    help="Without --reason and --verdict: show one in N new flows (0: none).",
)
@click.option("--all", "every_packet", is_flag=True, help="Show every packet of the services. Needs the agent.")
@click.option(
    "--sample",
    type=click.IntRange(1, 1 << 20),
    metavar="N",
    help="With --all: one in N packets of established flows (default: each).",
)
@pins_option
@socket_option
@state_dir_option
@form_option("text", "json")
def monitor(
    *,
    wanted: FlowFilter,
    reason: str,
    verdict: str,
    last: int | None,
    count: int | None,
    event_sample: int,
    every_packet: bool,
    sample: int | None,
    bpffs: str,
    socket: str,
    state_dir: str,
    form: str,
) -> None:
    """Show refusals and new flows as they happen, until it is interrupted. Needs root, and no agent.

    Every new flow that is forwarded is an event, and every packet that is refused, dropped or answered, up to --event-rate of the
    agent. Without --reason and --verdict all refusals are shown, and one in --event-sample new flows. The filters are those of
    `flow list`: the client is the source of the packet, the frontend its destination. --state and --idle-over select events whose
    flow is so in the flow table when the event is looked at: a tenth of a second after the packet, and with --last also much later.

    With --all the agent has the programs record every packet that they forward, answer or drop, until this command ends. Packets
    that are recorded take the longer way through the programs. With --sample they are one in N of established flows.

    -o json prints one object a line. Lost events are reported on stderr: those that new ones overwrote before they were read, and
    those that --event-rate left out.

    Exit code 3: there are no events, because no agent has run, or it runs with --events 0. 5: with --all no agent answers.
    """
    put_in_place("lbagent.model")
    from lbagent.maps.event_reader import EventReader
    from lbagent.maps.pinned_maps import PinnedMaps
    from lbagent.targets.bpf.event_flows import EventFlows
    from lbagent.targets.bpf.event_lines import EventLines
    from lbagent.targets.bpf.event_rows import EventRows

    if sample is not None and not every_packet:
        raise ConfigError("--sample goes with --all; --event-sample is for new flows")
    chosen = _Chosen.of(reason, verdict, 1 if every_packet else event_sample)
    agent = FollowedAgent(socket, state_dir, wanted.service)
    with ExitStack() as closing:
        reader = closing.enter_context(EventReader(bpffs, last=None if last else 0))
        rows = EventRows(closing.enter_context(PinnedMaps(bpffs)), agent.name_of)
        flows = EventFlows.of(bpffs, wanted)
        if flows:
            closing.enter_context(flows)
        lines = EventLines(rows, wanted, flows, as_json=form == "json")
        if every_packet:
            from lbagent.cli.sampled_packets import SampledPackets

            agent.sampled = closing.enter_context(SampledPackets(socket, every=sample or 1))
        for found in _selected(reader, lines, agent, chosen, last, count):
            click.echo("\n".join(output.printable(lines.line(event)) for event in found))


def _selected(
    reader: EventReader,
    lines: EventLines,
    agent: FollowedAgent,
    chosen: _Chosen,
    last: int | None,
    count: int | None,
) -> Iterator[list[Event]]:
    """Yield the events that are shown, those of a moment together, without an end, or so many."""
    left, said = count, ""
    losses = _Losses(reader)
    is_first = True
    while True:
        try:
            found = [
                event
                for event in reader.read()
                if not event.is_after
                and (agent.sampled or not event.is_known)
                and lines.selects(event)
                and chosen.has(event.reason)
            ]
            said = ""
        except LbError as error:  # another file is in the place of the pin
            found = []
            if str(error) != said:
                said = str(error)
                click.echo(said, err=True)
        if is_first and last:
            found = found[-last:]
        is_first = False
        found = found[:left]
        if found:
            yield found
        if left is not None:
            left -= len(found)
            if not left:
                losses.report(at_once=True)
                return
        losses.report()
        if agent.follow():
            lines.forget()  # Services may have other names
        output.require_reader()
        if len(found) < BUSY:
            time.sleep(POLL_S)


class _Chosen:
    """The events that --reason, --verdict and --event-sample select."""

    def __init__(self, reasons: frozenset[int] | None, sample: int) -> None:
        self._reasons, self._sample, self._new = reasons, sample, 0

    @classmethod
    def of(cls, reason: str, verdict: str, sample: int) -> _Chosen:
        """Read the words. Raises ConfigError for one that does not exist."""
        from lbagent.maps.reasons import VERDICTS, Reason, label, verdict_of

        by_word = {label(each): each for each in Reason if each}
        reasons = _words("--reason", reason, by_word)
        verdicts = _words("--verdict", verdict, VERDICTS)
        if not reasons and not verdicts:
            return cls(None, sample)
        named = [each for word, each in by_word.items() if not reasons or word in reasons]
        return cls(frozenset(int(each) for each in named if not verdicts or verdict_of(each) in verdicts), sample)

    def has(self, reason: int) -> bool:
        """Whether the next event, with this reason, is selected."""
        from lbagent.maps.reasons import verdict_of

        if self._reasons is not None:
            return reason in self._reasons
        if verdict_of(reason) not in ("forward", "local"):
            return True
        self._new += 1
        return bool(self._sample) and self._new % self._sample == 1 % self._sample


def _words(flag: str, text: str, known: Any) -> frozenset[str]:
    words = frozenset(filter(None, text.split(",")))
    if unknown := sorted(words - frozenset(known)):
        raise ConfigError(f"{flag} {unknown[0]}: there is no such word; the words are {', '.join(known)}")
    return words


class _Losses:
    """Reports lost events on stderr, at most once a second."""

    def __init__(self, reader: EventReader) -> None:
        self._reader, self._lost, self._limited = reader, reader.lost, reader.limited
        self._at = 0.0

    def report(self, *, at_once: bool = False) -> None:
        """Say how many were lost since the last report."""
        now = time.monotonic()
        if now - self._at < REPORT_S and not at_once:
            return
        lost, limited = self._reader.lost - self._lost, self._reader.limited - self._limited
        if lost:
            click.echo(f"{lost} events were lost: new ones overwrote them before they were read", err=True)
        if limited:
            click.echo(f"{limited} refusals have no event: they exceed the agent's --event-rate", err=True)
        if lost or limited:
            self._lost, self._limited, self._at = self._lost + lost, self._limited + limited, now
