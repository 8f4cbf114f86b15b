"""Maps of the kernel that fill up: only the frontend without room waits, and it is written as soon as there is room, without a change of a manifest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.agent.conftest import Box, endpoints, service, web
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]

TINY = ("--max-backends", "256", "--max-source-ranges", "4", "--max-service-slots")
VIP = "203.0.113.7"


def crowd(number: int) -> list[str]:
    return [f"10.7.{1 + n // 250}.{1 + n % 250}" for n in range(number)]


def guarded(count: int) -> dict:  # type: ignore[type-arg]
    ranges = [f"198.51.{n}.0/24" for n in range(count)]
    found = service("big", "10.96.0.20", type="LoadBalancer", loadBalancerSourceRanges=ranges)
    return found | {"status": {"loadBalancer": {"ingress": [{"ip": VIP}]}}}


def exposed(*ranges: str) -> dict:  # type: ignore[type-arg]
    """A Service with an address for clients outside, open without ranges."""
    spec = {"loadBalancerSourceRanges": list(ranges)} if ranges else {}
    found = service("shop", "10.96.0.40", type="LoadBalancer", **spec)
    return found | {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.8"}]}}}


CASES = {
    "slots": (lambda: (service("big", "10.96.0.20"), endpoints("big", *crowd(70))), "--max-service-slots", 70),
    "backends": (lambda: (service("big", "10.96.0.20"), endpoints("big", *crowd(300))), "--max-backends", 300),
    "ranges": (lambda: (guarded(9), endpoints("big", "10.7.0.5")), "--max-source-ranges", 1),
}


@pytest.mark.parametrize(("make", "option", "count"), CASES.values(), ids=CASES)
def test_a_full_map_holds_up_nobody_and_heals_when_it_is_raised(
    box: Box, make: Callable, option: str, count: int
) -> None:  # type: ignore[type-arg]
    box.write("web.json", *web("10.7.0.5"))
    box.agent = box.make_agent(*TINY, "1024" if option == "--max-backends" else "64")
    box.agent.start()
    served = [line for line in box.agent.dump() if "10.96.0.10" in line]
    box.write("big.json", *make())
    wait_for(lambda: box.agent.api.status()["failing"], "the failing frontend")
    failing = box.agent.api.status()["failing"]
    assert {item["service"] for item in failing} == {"box/big"}
    assert all(option in item["error"] for item in failing)
    assert option in box.agent.log.read_text()
    assert "frontends are not in the maps" in box.agent.cli("svc", "list").stderr
    assert not any(VIP in line for line in box.agent.dump()), "a VIP that is not guarded is not there"

    box.write("more.json", service("more", "10.96.0.30"), endpoints("more", "10.7.0.6", "10.7.0.7"))
    box.until_dump(
        lambda dump: any("10.96.0.30:80/TCP SLOT=0" in line and "COUNT=2" in line for line in dump), "another"
    )
    box.agent.cli("backend", "set-state", "10.7.0.6:8080", "maintenance")
    assert [line for line in box.agent.dump() if "10.96.0.10" in line] == served
    pauses = [item["retry_in_s"] for item in box.agent.api.status()["failing"]]
    assert all(0 <= pause <= 33 for pause in pauses)
    assert box.run("verify", "--bpffs", str(box.bpffs)).returncode == 0

    assert box.agent.stop() == 0
    box.agent = box.make_agent("--max-service-slots", "1024", "--max-backends", "1024", "--max-source-ranges", "64")
    box.agent.start()
    assert not box.agent.api.status()["failing"]
    wanted = f"COUNT={count} "
    frontend = f"{VIP}:80/TCP" if option == "--max-source-ranges" else "10.96.0.20:80/TCP"
    dump = box.agent.dump()
    assert any(f"{frontend} SLOT=0" in line and wanted in line for line in dump)
    assert [line for line in dump if "10.96.0.10" in line] == served
    assert box.run("verify", "--bpffs", str(box.bpffs)).returncode == 0


def test_a_frontend_that_waited_for_room_comes_when_another_leaves(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.write("one.json", service("one", "10.96.0.20"), endpoints("one", *crowd(40)))
    box.agent = box.make_agent(*TINY, "64")
    box.agent.start()
    box.write("two.json", service("two", "10.96.0.30"), endpoints("two", *crowd(40)))
    wait_for(lambda: box.agent.api.status()["failing"], "the failing frontend")
    (box.manifests / "one.json").unlink()
    box.until_dump(lambda dump: any("10.96.0.30:80/TCP SLOT=40" in line for line in dump), "its turn")
    assert not box.agent.api.status()["failing"]


def test_a_removed_backend_gets_no_new_flow_although_no_slot_is_free(box: Box) -> None:
    """Every Service takes a slot for its address, one for its port, and one for each backend: 59, 3 and 2 of 64."""
    box.write("web.json", *web("10.7.0.5"))
    box.write("one.json", service("one", "10.96.0.20"), endpoints("one", *crowd(57)))
    box.agent = box.make_agent(*TINY, "64")
    box.agent.start()
    box.write("last.json", service("last", "10.96.0.50"), endpoints("last"))
    box.until_dump(lambda dump: any("10.96.0.50:80/TCP SLOT=0" in line for line in dump), "the last slots")
    assert not box.agent.api.status()["failing"]
    box.write("web.json", *web("10.7.0.6", "10.7.0.7"))
    wait_for(lambda: box.agent.api.status()["failing"], "the failing frontend")
    slots = [line for line in box.agent.dump() if line.startswith("SVC") and "10.96.0.10:80/TCP" in line]
    assert len(slots) == 2
    status = box.agent.cli("status", check=False)
    assert status.returncode == 1
    assert (
        "box/web: map lb4_service is full: 64 of 64 entries used, 1 more needed; raise --max-service-slots"
        in status.stdout
    )
    assert "1 of its 2 backends; no new flow goes to 10.7.0.7:8080/TCP" in status.stdout
    assert not any(line.startswith("BE") and "10.7.0.5:8080" in line for line in box.agent.dump())
    box.write("one.json", service("one", "10.96.0.20"), endpoints("one", *crowd(56)))
    box.until_dump(lambda dump: any("10.96.0.10:80/TCP SLOT=2" in line for line in dump), "the other backend")
    wait_for(lambda: not box.agent.api.status()["failing"], "a status without it")
    assert box.run("verify", "--bpffs", str(box.bpffs)).returncode == 0


def test_a_full_map_of_source_ranges_opens_nothing(box: Box) -> None:
    box.write("other.json", guarded(4), endpoints("big", "10.7.0.5"))
    box.write("shop.json", exposed(), endpoints("shop", "10.7.0.6"))
    box.agent = box.make_agent(*TINY, "64")
    box.agent.start()
    box.write("shop.json", exposed("192.0.2.0/24"), endpoints("shop", "10.7.0.7"))
    wait_for(lambda: box.agent.api.status()["failing"], "the failing frontend")

    def closed() -> list[str]:
        return [line for line in box.agent.dump() if "203.0.113.8:80/TCP SLOT=" in line]

    def is_closed_with_the_new_backend() -> bool:
        dump = box.agent.dump()
        return "check source-range" in closed()[0] and any("10.7.0.7:8080" in line for line in dump)

    assert is_closed_with_the_new_backend(), closed()
    assert not any("192.0.2.0/24" in line for line in box.agent.dump())
    status = box.agent.cli("status", check=False)
    assert status.returncode == 1
    assert "box/shop: map lb4_source_range is full: 4 of 4 entries used, 1 more needed" in status.stdout
    assert "0 of its 1 source ranges; it refuses clients of 192.0.2.0/24" in status.stdout
    box.agent.stop()
    box.agent = box.make_agent(*TINY, "64")
    box.agent.start()
    assert is_closed_with_the_new_backend(), closed()
    box.write("other.json", guarded(3), endpoints("big", "10.7.0.5"))
    box.until_dump(lambda dump: any("192.0.2.0/24" in line for line in dump), "the range")
    wait_for(lambda: not box.agent.api.status()["failing"], "a status without it")
