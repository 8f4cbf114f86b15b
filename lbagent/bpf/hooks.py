"""The hook table: the places in the kernel where programs are attached, and all differences between hooks.

The build compiles the contexts, the loader gives each program its type, attaching takes target, attach type and flags. A new
hook is a line here, and a context if its programs see something else; docs/architecture.md lists the other places. Pure data.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import quote, unquote

from msgspec import Struct

from lbagent.kernel.bpf_link import AttachType
from lbagent.kernel.bpf_prog import ProgType

_XDP_FLAGS_SKB_MODE, _XDP_FLAGS_DRV_MODE = 2, 4


class Context(Struct, frozen=True):
    """The context of programs of one type. Each of `sources`, with -DLB_HOOK_NAME, is a compile unit."""

    name: str
    prog_type: ProgType
    sources: tuple[str, ...] = ("lb4.c", "lb6.c")  # in lbagent/bpf
    calls: str = ""  # the map with its tail calls, programs named call_CONTEXT_SLOT_NAME; '': has none
    attach_type_at_load: bool = (
        False  # the kernel allows a program only the operations of its attach type, which is given at load
    )

    @property
    def flag(self) -> str:
        """The compiler flag that selects the context in the C sources (include/hook/hook.h)."""
        return f"-DLB_HOOK_{self.name.upper()}"


class AttachPointKind(StrEnum):
    """The kind of attach point of a hook."""

    DEVICE = "device"
    CGROUP = "cgroup"


class AttachPoint(Struct, frozen=True):
    """An attach point of programs: a network device by its name, a cgroup by its path."""

    kind: AttachPointKind
    name: str

    @property
    def pin_name(self) -> str:
        """The name as part of a pin. bpffs allows no dot: `eth0.100` becomes `eth0:100` (no device name holds a colon).

        A path may hold anything: it is quoted as in a URL.
        """
        if self.kind is AttachPointKind.CGROUP:
            return quote(self.name, safe="").replace(".", "%2E")
        return self.name.replace(".", ":")

    @classmethod
    def from_pin_name(cls, kind: AttachPointKind, name: str) -> AttachPoint:
        """Return the attach point whose `pin_name` is `name`."""
        return cls(kind, unquote(name) if kind is AttachPointKind.CGROUP else name.replace(":", "."))


class Hook(Struct, frozen=True):
    """A hook of the kernel for a program. Hooks with one `program` and target exclude one another: the two modes of XDP."""

    name: str
    context: Context
    program: str  # entry program: pinned as prog/PROGRAM, its links as link/TARGET-PROGRAM
    attach_type: AttachType
    target: AttachPointKind = AttachPointKind.DEVICE
    link_flags: int = 0
    clsact_parent: int = 0  # parent of its filter on a kernel without TCX; 0: it needs none
    xdp_mode: str = ""  # the device's mode while this is attached (IFLA_XDP_ATTACHED)
    fallback: Hook | None = None  # the choice of `--attach auto` if the device's driver lacks this one
    companion: Hook | None = None  # attached and detached with this one, and processes the frames that this one leaves

    def __str__(self) -> str:
        """Return the name for `status`."""
        return self.name


XDP_CONTEXT = Context("xdp", ProgType.XDP, calls="lb_calls_xdp")
TC_CONTEXT = Context("tc", ProgType.SCHED_CLS, calls="lb_calls_tc")
SOCK_CONTEXT = Context("sock", ProgType.CGROUP_SOCK_ADDR, ("sock4.c", "sock6.c"), attach_type_at_load=True)
CONTEXTS = {context.name: context for context in (XDP_CONTEXT, TC_CONTEXT, SOCK_CONTEXT)}

TC_INGRESS = Hook("tc_ingress", TC_CONTEXT, "tc_ingress", AttachType.TCX_INGRESS, clsact_parent=0xFFFFFFF2)
TC_EGRESS = Hook("tc_egress", TC_CONTEXT, "tc_egress", AttachType.TCX_EGRESS, clsact_parent=0xFFFFFFF3)
TC_AFTER_XDP = Hook(
    "tc_after_xdp", TC_CONTEXT, "tc_after_xdp", AttachType.TCX_INGRESS, clsact_parent=TC_INGRESS.clsact_parent
)
XDP = Hook(
    "xdp", XDP_CONTEXT, "xdp", AttachType.XDP, link_flags=_XDP_FLAGS_DRV_MODE, xdp_mode="xdp",
    fallback=TC_INGRESS, companion=TC_AFTER_XDP,
)  # fmt: skip
XDP_GENERIC = Hook(
    "xdp-generic", XDP_CONTEXT, "xdp", AttachType.XDP, link_flags=_XDP_FLAGS_SKB_MODE, xdp_mode="xdpgeneric",
    companion=TC_AFTER_XDP,
)  # fmt: skip
SOCKET_HOOKS = tuple(
    Hook(name, SOCK_CONTEXT, name, attach_type, AttachPointKind.CGROUP)
    for name, attach_type in {
        "connect4": AttachType.INET4_CONNECT,
        "connect6": AttachType.INET6_CONNECT,
        "sendmsg4": AttachType.UDP4_SENDMSG,
        "sendmsg6": AttachType.UDP6_SENDMSG,
        "recvmsg4": AttachType.UDP4_RECVMSG,
        "recvmsg6": AttachType.UDP6_RECVMSG,
        "getpeername4": AttachType.INET4_GETPEERNAME,
        "getpeername6": AttachType.INET6_GETPEERNAME,
    }.items()
)
HOOKS = (XDP, XDP_GENERIC, TC_INGRESS, TC_EGRESS, TC_AFTER_XDP, *SOCKET_HOOKS)
# `--attach MODE` but auto: the hook by which a device's packets come in
INGRESS_MODES = {"xdp": XDP, "xdp-generic": XDP_GENERIC, "tc": TC_INGRESS}


def link_pin(target: AttachPoint, hook: Hook) -> str:
    """Return the file name of the pinned link; hooks that exclude one another share it."""
    return f"{target.pin_name}-{hook.program}"


def parse_link_pin(name: str) -> tuple[AttachPoint, Hook]:
    """Return target and hook of a pinned link (`XDP` for both XDP modes: `in_mode` distinguishes them).

    Raises ValueError if no hook has this name.
    """
    target, _, program = name.rpartition("-")
    for hook in HOOKS:
        if hook.program == program:
            return AttachPoint.from_pin_name(hook.target, target), hook
    raise ValueError(f"{name} is not the pin of a link")


def load_attach_type(context: str, program: str) -> int:
    """Return the attach type that the kernel requires when a program is loaded, 0 if it requires none."""
    if not CONTEXTS[context].attach_type_at_load:
        return 0
    return next((hook.attach_type for hook in HOOKS if hook.program == program), 0)


def contexts_of(hooks: Iterable[Hook]) -> frozenset[str]:
    """Return the names of the contexts whose programs these hooks and their companions run."""
    return frozenset(each.context.name for hook in hooks for each in (hook, hook.companion) if each)


def in_mode(hook: Hook, xdp_mode: str) -> Hook:
    """Return the hook of the same program that a device in this XDP mode runs; `hook` itself where there is none."""
    return next((other for other in HOOKS if (other.program, other.xdp_mode) == (hook.program, xdp_mode)), hook)
