"""`lbagent`: the command tree and how a command ends.

Commands are imported when they are used, so that `lbagent svc list` starts with click, http.client and json alone. A command
fails by raising an LbError: one sentence on stderr, the class's exit code, no traceback (LBAGENT_DEBUG=1 shows it).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

import lbagent
from lbagent.errors import LbError

# name -> module:attribute and the line of the help text, in the order of the help text
VERBS = {
    "agent": ("lbagent.cli.verbs.agent:agent", "Run the agent in the foreground."),
    "svc": ("lbagent.cli.verbs.svc:svc", "Services: list, get."),
    "backend": ("lbagent.cli.verbs.backend:backend", "Backends: list, set-state, clear-state, drain."),
    "flow": ("lbagent.cli.verbs.flow:flow", "Flows: list, get, count, delete."),
    "node": ("lbagent.cli.verbs.node:node", "All backends of a node: drain."),
    "map": ("lbagent.cli.verbs.maps:maps", "The kernel's maps: dump."),
    "status": ("lbagent.cli.verbs.status:status", "Show whether the agent is ready, and what is wrong."),
    "top": ("lbagent.cli.verbs.top:top", "Show which services, backends and drops have traffic now."),
    "ui": ("lbagent.cli.verbs.ui:ui", "Serve a page for browsers: traffic, changes, what is wrong."),
    "explain": ("lbagent.cli.verbs.explain:explain", "Show what happens to a packet, and why."),
    "monitor": ("lbagent.cli.verbs.monitor:monitor", "Show refusals and new flows as they happen."),
    "capture": ("lbagent.cli.verbs.capture:capture", "Capture packets before and after the load balancer."),
    "record": ("lbagent.cli.verbs.record:record", "Record the node for a bug report: dump."),
    "history": ("lbagent.cli.verbs.history:history", "Show what caused each generation."),
    "plan": (
        "lbagent.cli.verbs.plan:plan",
        "Show the map entries of manifests; needs no agent and no root.",
    ),
    "render": (
        "lbagent.cli.verbs.render:render",
        "Print the rules that a data plane makes of manifests; needs no agent and no root.",
    ),
    "cloud": ("lbagent.cli.verbs.cloud:cloud", "Addresses of LoadBalancers: run, plan, pools, providers."),
    "apilb": (
        "lbagent.cli.verbs.apilb:apilb",
        "Load balancers of API servers: show, render, plan, apply, destroy, export, status.",
    ),
    "vip": ("lbagent.cli.verbs.vip:vip", "Announced addresses: list, why."),
    "bgp": ("lbagent.cli.verbs.vip:bgp", "Announcement of addresses by BGP: peers."),
    "verify": ("lbagent.cli.verbs.verify:verify", "Compare data planes with what they must be, and repair."),
    "shadow": ("lbagent.cli.verbs.shadow:shadow", "What lbagent would do otherwise than another proxy: report."),
    "migrate": ("lbagent.cli.verbs.migrate:migrate", "Replace kube-proxy on this node, and back."),
    "doctor": ("lbagent.cli.verbs.doctor:doctor", "Show what this machine supports and what will be used."),
    "renderers": ("lbagent.cli.verbs.renderers:renderers", "List the data planes of `agent --renderer`."),
    "bpf": ("lbagent.cli.verbs.bpf:bpf", "The programs: build."),
    "config": ("lbagent.cli.verbs.config:config", "The configuration: check, show."),
    "metrics": ("lbagent.cli.verbs.status:metrics", "Print the agent's metrics as Prometheus text."),
    "cleanup": ("lbagent.cli.verbs.cleanup:cleanup", "Remove programs, links, maps and pins from the kernel."),
    "completion": ("lbagent.cli.verbs.completion:completion", "Print a shell's completion script."),
}
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
REQUEST = "_LBAGENT_COMPLETE"  # is in the environment while a shell requests completions
COLLECTIONS = (50_000, 20, 100)  # garbage collections: imports make none, and were a tenth slower with those of Python
INTERRUPTED = 130  # 128 + SIGINT, as shells count


class _ReaderLeft(Exception):
    """The reader of stdout closed the pipe."""


@contextmanager
def _broken_pipe_kept_from_click() -> Iterator[None]:
    """Mark a closed pipe: click would end `lbagent svc list | head -1` with an error."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderLeft from error


class LazyGroup(click.Group):
    """A group whose commands are imported one by one."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments; --help prints the help text and ends."""
        with _broken_pipe_kept_from_click():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _broken_pipe_kept_from_click():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of VERBS."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        del ctx
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        if REQUEST in os.environ:
            from lbagent.cli.completions import add_completions

            return add_completions(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a similar name for an unknown one; click would search only commands that are imported."""
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.version_option(lbagent.__version__, prog_name="lbagent")
def cli() -> None:
    """Balance service traffic on this node with BPF programs.

    Exit codes: 0 ok, 1 failed or differs, 2 usage, 3 not found, 4 refused, 5 agent unreachable, 6 timed out, 77 not
    supported by this kernel.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    gc.set_threshold(*COLLECTIONS)
    code = run(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the interpreter would print an error at exit and change the exit code to 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every failure is one sentence on stderr."""
    _settle_streams()
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments), prog_name="lbagent", standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (BrokenPipeError, _ReaderLeft):
        return 0
    except LbError as error:
        return _fail(error, error.exit_code)
    except BaseExceptionGroup as group:  # a TaskGroup wraps an error
        found = _first(group)
        return _fail(found or group, found.exit_code if isinstance(found, LbError) else 1)
    except Exception as error:  # noqa: BLE001 - the last door: an operator is not shown a traceback
        return _fail(error, 1)
    return result if isinstance(result, int) else 0


def _first(group: BaseExceptionGroup[BaseException]) -> Exception | None:
    """Return the first LbError, else the first OSError, of a group that holds nothing else."""
    expected, others = group.split((LbError, OSError))
    if others is not None or expected is None:
        return None
    found: BaseException = expected.subgroup(LbError) or expected
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)
    return found


def _settle_streams() -> None:
    """Replace a closed stream by /dev/null; write characters that an encoding lacks as escapes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - takes the closed descriptor's place
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _sentence(error: BaseException) -> str:
    """Return an error's text; Python writes an OSError as `[Errno 2] No such file or directory: '/x'`."""
    if isinstance(error, LbError):
        return str(error)
    if not isinstance(error, OSError):
        return _defect(error)
    if not error.strerror:
        return str(error)
    text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return text + ("; run as root" if isinstance(error, PermissionError) and os.geteuid() else "")


def _defect(error: BaseException) -> str:
    """Return a sentence about an unexpected error: what and where, for a bug report."""
    import traceback

    while isinstance(error, BaseExceptionGroup):
        error = next((item for item in error.exceptions if not isinstance(item, LbError)), error.exceptions[0])
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split())
    return f"this is a defect of lbagent ({type(error).__name__}{where}: {text}); LBAGENT_DEBUG=1 shows more; please report it"


def _fail(error: BaseException, code: int) -> int:
    if os.environ.get("LBAGENT_DEBUG"):
        import traceback

        traceback.print_exception(error)
    with suppress(OSError):  # without stderr the exit code remains
        click.echo(f"error: {_sentence(error)}", err=True)
    return code


if __name__ == "__main__":
    main()
