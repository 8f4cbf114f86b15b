"""States of a flow and what time does to it, seen in the flow table itself."""

from __future__ import annotations

import struct

import pytest

from lbagent.bpf.load import program_settings
from lbagent.kernel import jiffies
from lbagent.maps import layout
from lbagent.testing.bpf_test_run import run_xdp
from tests.packet import craft, expect, table
from tests.packet.clock import TimedWorld, ticks_of
from tests.packet.craft import Family
from tests.packet.table import CLOSING, EST, MID, NEW
from tests.packet.world import TCP, UDP, XDP, BackendRow, Outcome, ServiceRow, World

TICK_S = (1 << program_settings.tick_shift(jiffies.hz())) / jiffies.hz()
DEFAULTS = program_settings.ProgramSettings()


def ticks(seconds: float) -> int:
    """Return seconds in ticks, rounded up and two more: certainly over."""
    return int(seconds / TICK_S) + 3


class Talk:
    """A client and a backend in conversation."""

    def __init__(self, world: World, fam: Family, hook: str, proto: int, *, local: bool) -> None:
        """Enter a service with one backend."""
        self.world, self.fam, self.hook, self.proto, self.local = world, fam, hook, proto, local
        address = fam.local(1) if local else fam.remote(1)
        self.backend: BackendRow = world.backend(fam, address, 8080, proto, local=local)
        self.service: ServiceRow = world.service(fam, fam.vip, 80, proto, [self.backend])
        self.source = ("", 0)

    def from_client(self, flags: str = "A") -> Outcome:
        """Send a packet of the client."""
        packet = craft.segment(self.fam, self.proto, self.fam.client, 40000, self.fam.vip, 80, flags)
        out = self.world.run(self.hook, craft.frame(packet))
        if not out.dropped:
            self.source = expect.source(out)
        return out

    def from_backend(self, flags: str = "A") -> Outcome:
        """Send a packet of the backend."""
        if self.local:
            frame = expect.local_reply(self.fam, self.proto, self.backend, *self.source, flags)
            return expect.at_pod(self.world, frame)
        frame = expect.remote_reply(self.fam, self.proto, self.backend, self.source[1], flags)
        return self.world.run(self.hook, frame, self.world.net.lb1)

    @property
    def state(self) -> int:
        """State of the flow."""
        return table.only(self.world, self.fam).state


@pytest.fixture(params=[False, True], ids=["remote", "local"])
def local(request: pytest.FixtureRequest) -> bool:
    """Run the test with a remote and with a local backend."""
    return bool(request.param)


def test_entry_says_who_talks_to_whom(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Client, port, protocol, backend and SNAT port stand in the table."""
    for proto in (TCP, UDP):
        world.reset()
        talk = Talk(world, fam, hook, proto, local=local)
        talk.from_client("S")
        flow = table.only(world, fam)
        assert (flow.client, flow.port, flow.udp, flow.backend) == (fam.client, 40000, proto == UDP, talk.backend.id)
        assert flow.snat_port == (0 if local else talk.source[1])
        assert table.held_slots(world, fam) == (0 if local else 1)


def test_tcp_from_syn_to_close(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """NEW after the SYN, established by the handshake, closing after both sides' FIN."""
    talk = Talk(world, fam, hook, TCP, local=local)
    talk.from_client("S")
    assert talk.state == NEW
    talk.from_backend("SA")
    talk.from_client("A")
    assert talk.state == EST
    talk.from_client("FA")
    assert talk.state == EST
    talk.from_backend("A")
    assert talk.state == EST
    talk.from_backend("FA")
    assert talk.state == CLOSING
    assert talk.from_client("A").packet != b""
    assert talk.state == CLOSING


@pytest.mark.parametrize(("end", "fin"), [("FA", 1), ("<FA", 2)], ids=["client", "backend"])
@pytest.mark.parametrize("before", ["FA <FA A", "R", "FA <R", "<FA R"])
def test_a_port_used_again_is_half_closed_by_one_side(
    world: World, fam: Family, hook: str, before: str, end: str, fin: int, *, local: bool
) -> None:
    """The end of the connection before does not affect the new one."""
    talk = Talk(world, fam, hook, TCP, local=local)
    for word in ["S", "<SA", "A", *before.split()]:
        (talk.from_backend if word.startswith("<") else talk.from_client)(word.lstrip("<"))
    assert talk.state == CLOSING
    for word in ("S", "<SA", "A", end, "<A", "A"):
        (talk.from_backend if word.startswith("<") else talk.from_client)(word.lstrip("<"))
    flow = table.only(world, fam)
    assert (flow.state, flow.fin) == (EST, fin)


@pytest.mark.parametrize("who", ["client", "backend"])
def test_rst_closes(world: World, fam: Family, hook: str, who: str, *, local: bool) -> None:
    """A RST of either side closes the flow and is passed on."""
    talk = Talk(world, fam, hook, TCP, local=local)
    talk.from_client("S")
    talk.from_backend("SA")
    talk.from_client("A")
    out = talk.from_client("R") if who == "client" else talk.from_backend("R")
    assert not out.dropped
    assert talk.state == CLOSING


def test_syn_flood_makes_no_established_flow(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """SYNs alone, however often, and SYN-ACKs alone do not establish."""
    talk = Talk(world, fam, hook, TCP, local=local)
    for _ in range(5):
        talk.from_client("S")
        talk.from_backend("SA")
        assert talk.state == NEW


def test_first_packet_in_the_middle(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """A flow whose SYN was not seen has its own state until it continues."""
    talk = Talk(world, fam, hook, TCP, local=local)
    talk.from_client("A")
    assert talk.state == MID
    talk.from_backend("A")
    assert talk.state == EST


def test_udp_is_established_only_by_a_reply(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Any number of datagrams from the client leave the flow NEW."""
    talk = Talk(world, fam, hook, UDP, local=local)
    for _ in range(5):
        talk.from_client()
        assert talk.state == NEW
    talk.from_backend()
    assert talk.state == EST


# --- time ---


def sweep(world: World, fam: Family, half: int = 0) -> int:
    """Run the sweeper over the whole table; return the live flows it counted."""
    count = world.maps.specs[f"lb{fam.version}_flow"].value_size // (
        layout.FLOW4_SIZE if fam.version == 4 else layout.FLOW6_SIZE
    ) // layout.FLOW_WAYS  # fmt: skip
    first = live = 0
    while first < count:
        data = layout.LB_SWEEP.pack(first, count - first, half, 0, 0, 0)
        result = run_xdp(world.programs[f"sweep{fam.version}"], data)
        first, _, _, _, found, _ = layout.LB_SWEEP.unpack(result.packet)  # type: ignore[assignment]
        live += int(found)
    return live


TIMEOUTS = {
    "new": (TCP, ["S"], DEFAULTS.timeout_new_s),
    "established": (TCP, ["S", "<SA", "A"], DEFAULTS.timeout_tcp_s),
    "closing": (TCP, ["S", "<SA", "A", "<R"], DEFAULTS.timeout_closing_s),
    "middle": (TCP, ["A"], DEFAULTS.timeout_new_s),
    "udp-new": (UDP, [""], DEFAULTS.timeout_new_s),
    "udp": (UDP, ["", "<"], DEFAULTS.timeout_udp_s),
}


@pytest.mark.parametrize("case", list(TIMEOUTS))
def test_time_outs(still_world: TimedWorld, fam: Family, hook: str, case: str, *, local: bool) -> None:
    """The sweeper leaves a flow alone in the last tick of its time-out and frees it, port included, in the next one."""
    world, (proto, packets, seconds) = still_world.world, TIMEOUTS[case]
    talk = Talk(world, fam, hook, proto, local=local)
    for packet in packets:
        (talk.from_backend if packet.startswith("<") else talk.from_client)(packet.lstrip("<"))
    assert sweep(world, fam) == 1
    table.age(world, fam, ticks_of(seconds))
    assert sweep(world, fam) == 1
    assert len(table.flows(world, fam)) == 1
    table.age(world, fam, 1)
    assert sweep(world, fam) == 0
    assert table.flows(world, fam) == []
    assert table.held_slots(world, fam) == 0


def test_a_packet_renews_a_flow(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Either direction resets the age."""
    talk = Talk(world, fam, hook, TCP, local=local)
    for packet in ("S", "<SA", "A"):
        (talk.from_backend if packet.startswith("<") else talk.from_client)(packet.lstrip("<"))
    for speak in (talk.from_client, talk.from_backend):
        before = table.only(world, fam).seen
        table.age(world, fam, 5000)
        assert table.only(world, fam).seen == (before - 5000) & 0xFFFF
        speak("A")
        if speak == talk.from_client or local:  # a remote reply may be noted by the slot alone for some ticks
            assert (table.only(world, fam).seen - before) & 0xFFFF < 1000


def test_sweeper_counts_live_flows_by_backend(world: World, fam: Family, hook: str) -> None:
    """Each half of lb_live gets the flows of each backend."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 4)]
    world.service(fam, fam.vip, 80, TCP, backends)
    places = [
        expect.destination(world.run(hook, craft.frame(craft.tcp(fam, fam.client, 41000 + n, fam.vip, 80))))
        for n in range(60)
    ]
    world.clear("lb_live")
    assert sweep(world, fam, half=1) == 60
    for backend in backends:
        offset = (world.sizes.backends + backend.id) * 4
        with world.maps.window("lb_live", offset, 4) as view:
            assert struct.unpack("=I", view)[0] == places.count(backend.endpoint)


def test_a_run_of_the_sweeper(world: World, fam: Family) -> None:
    """One run does SWEEP_STEP buckets at most and returns where the next one begins; it adds up the live flows, and keeps the tick that it was given."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    for n in range(200):
        world.run(XDP, craft.frame(craft.tcp(fam, fam.client, 41000 + n, fam.vip, 80)))
    buckets: dict[int, int] = {}
    for flow in table.flows(world, fam):
        buckets[flow.position // layout.FLOW_WAYS] = buckets.get(flow.position // layout.FLOW_WAYS, 0) + 1

    def run(first: int, count: int, live: int, until: int) -> tuple[int, tuple[int, ...]]:
        data = layout.LB_SWEEP.pack(first, count, 0, 0, live, until)
        result = run_xdp(world.programs[f"sweep{fam.version}"], data)
        return result.verdict, struct.unpack_from("=6Q", result.packet)

    step = layout.SWEEP_STEP
    for first, count in ((0, step - 1), (7, step), (7, step + 1), (100, 900), (3, 0), (20, 1)):
        done = min(count, step)
        found = sum(flows for bucket, flows in buckets.items() if first <= bucket < first + done)
        verdict, record = run(first, count, 1000, 4711)
        assert record == (first + done, count - done, 0, 0, 1000 + found, 4711), (first, count)
        assert verdict == 1000 + found
    assert run(0, 1, 0, 0)[1][-1] > 1 << 15


@pytest.mark.parametrize("half", [0, 1])
def test_the_sweeper_counts_into_one_half(world: World, fam: Family, half: int) -> None:
    """Readers use the other one meanwhile."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 4)]
    world.service(fam, fam.vip, 80, TCP, backends)
    for n in range(30):
        world.run(XDP, craft.frame(craft.tcp(fam, fam.client, 41000 + n, fam.vip, 80)))
    flows = table.flows(world, fam)
    world.clear("lb_live")
    assert sweep(world, fam, half=half) == 30
    size = world.maps.specs["lb_live"].value_size
    with world.maps.window("lb_live", 0, size) as view:
        counted = {n: count for n, count in enumerate(struct.unpack(f"={size // 4}I", view)) if count}
    wanted = {b.id + half * world.sizes.backends: sum(flow.backend == b.id for flow in flows) for b in backends}
    assert counted == wanted


@pytest.mark.parametrize("end", [("FA", "<FA", "A"), ("R",), ("<R",), ("FA",), ()])
def test_the_sweeper_counts_flows_that_have_ended(world: World, fam: Family, hook: str, end: tuple[str, ...]) -> None:
    """A connection that one side has closed lives."""
    talk = Talk(world, fam, hook, TCP, local=False)
    for packet in ("S", "<SA", "A", *end):
        (talk.from_backend if packet.startswith("<") else talk.from_client)(packet.lstrip("<"))
    for name in ("lb_live", "lb_closing"):
        world.clear(name)
    sweep(world, fam, half=1)
    counts = []
    for name in ("lb_live", "lb_closing"):
        with world.maps.window(name, 0, world.maps.specs[name].value_size) as view:
            found = struct.unpack(f"={len(view) // 4}I", view)
        assert not any(found[: world.sizes.backends])
        counts.append(sum(found))
    assert counts == [1, int(end not in (("FA",), ()))]


def test_expired_flow_gives_its_place_to_a_new_one(world: World, fam: Family, hook: str) -> None:
    """An expired connection that continues is either the same as before or a new one, never that of another client."""
    talk = Talk(world, fam, hook, TCP, local=False)
    for packet in ("S", "<SA", "A"):
        (talk.from_backend if packet.startswith("<") else talk.from_client)(packet.lstrip("<"))
    table.age(world, fam, ticks(DEFAULTS.timeout_tcp_s))
    out = talk.from_client("A")
    assert out.forwarded
    back = talk.from_backend("A")
    assert expect.destination(back) == (fam.client, 40000)
