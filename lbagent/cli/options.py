"""Options that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from lbagent.api.client import AgentClient
from lbagent.cli.output import FORMATS, Style
from lbagent.defaults import DEFAULT_BPFFS, DEFAULT_STATE_DIR
from lbagent.durations import parse_duration
from lbagent.errors import LbError

F = TypeVar("F", bound=Callable[..., Any])

FITTING = (
    "Format of the output. A table cuts long names to fit the terminal, else 80 columns ($COLUMNS sets another number); all other"
    " formats print them in full."
)
_ASK_S = 2.0


def socket_option(command: F) -> F:
    """Add --socket; the command gets the text, '' when not given."""
    return click.option(
        "--socket", default="", envvar="LBAGENT_SOCKET", metavar="PATH", help="The agent's socket: PATH or unix://PATH."
    )(command)


def bpffs_option(command: F) -> F:
    """Add --bpffs."""
    return click.option(
        "--bpffs",
        default=DEFAULT_BPFFS,
        show_default=True,
        envvar="LBAGENT_BPFFS",
        metavar="DIR",
        help="Folder of the pins.",
    )(command)


def agent_pins_option(command: F) -> F:
    """Add --bpffs; the command gets '' where it is not given, and may use `pins_of_the_agent`."""
    return click.option(
        "--bpffs",
        default="",
        envvar="LBAGENT_BPFFS",
        metavar="DIR",
        help=f"Folder of the pins (default: the running agent's, else {DEFAULT_BPFFS}).",
    )(command)


def pins_option(command: F) -> F:
    """Add --bpffs for commands that read the maps; the default is the folder of the running agent's pins."""

    @agent_pins_option
    @functools.wraps(command)
    def wrapped(*args: Any, bpffs: str, **kwargs: Any) -> Any:
        return command(*args, bpffs=bpffs or pins_of_the_agent(), **kwargs)

    return wrapped  # type: ignore[return-value]


def pins_of_the_agent() -> str:
    """Return the folder of the running agent's pins, else the default."""
    try:
        return str(AgentClient(timeout_s=_ASK_S).status()["bpffs"]) or DEFAULT_BPFFS
    except LbError:
        return DEFAULT_BPFFS


def form_option(*forms: str, text: str = "Format of the output.") -> Callable[[F], F]:
    """Add -o with these words; the first one is the default."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        help=text,
    )


def list_options(command: F) -> F:
    """Add -o, -w, --no-headers and --sort-by; the command gets them as `style`."""

    @form_option(*FORMATS, text=FITTING)
    @click.option("-w", "--watch", is_flag=True, help="Keep running and print each row again when it changes.")
    @click.option("--no-headers", is_flag=True, help="Print no header line.")
    @click.option("--sort-by", default="", metavar="COLUMN", help="Sort by this column or JSON field.")
    @functools.wraps(command)
    def wrapped(*args: Any, form: str, watch: bool, no_headers: bool, sort_by: str, **kwargs: Any) -> Any:
        return command(*args, style=Style(form, not no_headers, sort_by, watch), **kwargs)

    return wrapped  # type: ignore[return-value]


class Duration(click.ParamType[float]):
    """`30s`, `2m`, `1m30s`, `500ms`, or a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value)
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
        try:
            return parse_duration(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


# --- filters of flows, and of events about flows ---

FLOW_STATES = ("new", "established", "closing", "mid")
_FILTERS = (
    click.option("--client", default="", metavar="CIDR|ADDRESS[:PORT]", help="Only flows of these clients."),
    click.option("--frontend", default="", metavar="ADDRESS[:PORT][/PROTOCOL]", help="Only flows to this frontend."),
    click.option("--backend", default="", metavar="ADDRESS[:PORT][/PROTOCOL]", help="Only flows to this backend."),
    click.option("--service", default="", metavar="NAMESPACE/NAME", help="Only flows to frontends of this Service."),
    click.option(
        "--proto", type=click.Choice(("tcp", "udp", "sctp"), case_sensitive=False), help="Only flows of this protocol."
    ),
    click.option("--state", type=click.Choice(FLOW_STATES), help="Only flows in this state."),
    click.option(
        "--idle-over",
        "idle_over_s",
        type=Duration(),
        metavar="DURATION",
        help="Only flows without a packet for longer than this, like 30s or 5m.",
    ),
    click.option("-4", "four", is_flag=True, help="Only IPv4."),
    click.option("-6", "six", is_flag=True, help="Only IPv6."),
)


def filter_options(command: F) -> F:
    """Add the filters of flows; the command gets them as `wanted`."""

    @functools.wraps(command)
    def wrapped(*args: Any, four: bool, six: bool, proto: str | None, state: str | None, **kwargs: Any) -> Any:
        from lbagent.partial_imports import put_in_place

        put_in_place(
            "lbagent.model"
        )  # of which only single modules are used: a start without the rest takes half the time
        from lbagent.maps.flow_filter import flow_filter
        from lbagent.model.family import Family

        names = ("client", "frontend", "backend", "service", "idle_over_s")
        words = {name: kwargs.pop(name) for name in names}
        families = [family for family, is_given in zip(Family, (four, six), strict=True) if is_given]
        wanted = flow_filter(**words, proto=(proto or "").lower(), state=state or "", families=families)
        return command(*args, wanted=wanted, **kwargs)

    for option in reversed(_FILTERS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def limit_option(what: str) -> Callable[[F], F]:
    """Add --limit."""
    return click.option("--limit", type=click.IntRange(1), metavar="N", help=f"At most so many {what}.")


def state_dir_option(command: F) -> F:
    """Add --state-dir."""
    return click.option(
        "--state-dir",
        default=DEFAULT_STATE_DIR,
        show_default=True,
        envvar="LBAGENT_STATE_DIR",
        metavar="DIR",
        help="Folder of the agent's state: names of Services while no agent runs.",
    )(command)
