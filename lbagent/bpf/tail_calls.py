"""The programs behind the entry points, in one list: their tail call slots, their names, and the C functions they run.

C gets `CALL_NAME` constants and the programs (bpf/compiler/c_source.py); the loader fills lb_calls_HOOK by the programs' names. A
program `NAME4` or `NAME6` runs the C function `NAME_main`; bpf/include/base/scratch.h describes how one passes a packet to the
next.
"""

from __future__ import annotations

from msgspec import Struct

from lbagent.model.family import Family


class TailCall(Struct, frozen=True):
    """A program that other programs tail-call."""

    name: str
    expects: str  # the caller's values in the scratch record (struct lb_scratch)


# The order determines the slots: 1 and 2 are those of the first program for IPv4 and IPv6, and so on.
TAIL_CALLS = (
    TailCall("parse_full", "hook_flags: parse the whole packet"),
    TailCall("slow_path", "pk: flow look-up, then service and selection"),
    TailCall("flow_create", "pk and the choice: make the flow and forward"),
    TailCall("icmp", "pk without ports: an ICMP message that may quote a translated packet"),
    TailCall("answer", "pk, answer, answer_mtu: the sender is answered"),
    TailCall("reply", "pk: reply of a backend, by SNAT slot or by the local backend's flow"),
    TailCall("snat_reclaim", "pk and the choice: no SNAT port was free at first sight"),
    TailCall("fragment", "pk, out_macs, out_rest, answer_mtu: the translated datagram leaves in fragments"),
    TailCall("direct", "pk: a datagram that a client sends to a local backend itself"),
    TailCall("announce", "nothing: a frame that may be an ARP request or a neighbor solicitation"),
    TailCall("event", "pk, event_reason, event_verdict: the verdict is recorded and returned"),
    TailCall("echo", "pk without ports: an echo request that may be to an address of a service"),
    TailCall("choose", "pk, hash, choice, rules_*: a flow of a Service with rules gets its backend, or is refused"),
    TailCall("l7", "pk: a packet, or an ICMP error, to a frontend of an L7 proxy is given to the kernel's sockets"),
    TailCall("sctp", "hook_flags: a plain frame of SCTP, of a flow that may be known"),
    TailCall("sctp_chunk", "pk without flags: what the first chunk of an SCTP packet does to its flow"),
    TailCall(
        "sctp_sum", "pk, out, here, out_macs, out_rest, answer_mtu: the translated packet gets its checksum and leaves"
    ),
    TailCall("sctp_abort", "pk, answer: the sender of an SCTP packet gets an ABORT"),
)
# Programs that run by BPF_PROG_TEST_RUN, compiled for one hook only: those of the agent, which are loaded at a start, and those
# that a command loads when it needs them.
AGENT_RUNS = {"xdp": ("sweep",), "tc": ("migrate",)}
COMMAND_RUNS = {"tc": ("flow_delete",)}
AGENT_RUN_PROGRAMS, COMMAND_RUN_PROGRAMS = (
    frozenset(f"{name}{family}" for names in runs.values() for name in names for family in Family)
    for runs in (AGENT_RUNS, COMMAND_RUNS)
)


def call_slot(name: str, family: Family) -> int:
    """Return the slot of a program. Raises ValueError for one that is not in the list."""
    position = [call.name for call in TAIL_CALLS].index(name)
    return 1 + position * len(Family) + [*Family].index(family)


def program_functions(hook: str, family: Family, *, runs: bool = True) -> dict[str, str]:
    """Return the programs of a hook and family behind the entry points: name of the program -> its C function.

    `runs`: those of AGENT_RUNS and COMMAND_RUNS, too.
    """
    calls = {
        f"call_{hook}_{call_slot(call.name, family)}_{call.name}{family}": f"{call.name}_main" for call in TAIL_CALLS
    }
    named = (*AGENT_RUNS.get(hook, ()), *COMMAND_RUNS.get(hook, ())) if runs else ()
    return calls | {f"{name}{family}": f"{name}_main" for name in named}
