"""The cache of a resource: older versions, deletions out of order, lists that are compared, what is held."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.kube.object_cache import Draft, ObjectCache, UnreadableAnswer, is_older, metadata_of
from lbagent.kube.resources import resources
from lbagent.objects.records import ObjectChange
from tests.kube.api_server import Obj
from tests.kube.cluster import essence, service, slice_of


def cache() -> ObjectCache:
    return ObjectCache(resources("n")[0])


def raw(name: str, version: int | str, vip: str = "10.96.0.1") -> bytes:
    return msgspec.json.encode(service(name, vip, resourceVersion=str(version)))


def put(to: ObjectCache, data: bytes) -> ObjectChange | None:
    return to.put(data, metadata_of(data))


def view(of: ObjectCache) -> dict[str, Any]:
    return {key: essence(obj) for key, obj in of.objects.items()}


def test_an_older_event_changes_nothing() -> None:
    one = cache()
    assert put(one, raw("a", 9, "10.0.0.9")) is not None
    assert put(one, raw("a", 8, "10.0.0.8")) is None
    assert put(one, raw("a", 9, "10.0.0.9")) is None
    assert put(one, raw("a", 10, "10.0.0.9")) is None  # newer, and nothing else
    assert put(one, raw("a", 100, "10.0.0.7")) is not None
    assert view(one) == {"default/a": ("10.0.0.7",)}


def test_a_deletion_that_came_before_is_not_undone() -> None:
    one = cache()
    put(one, raw("a", 5))
    assert one.delete(metadata_of(raw("a", 4))) is None
    assert one.delete(metadata_of(raw("a", 7))) is not None
    assert put(one, raw("a", 6)) is None
    assert put(one, raw("a", 8)) is not None


@pytest.mark.parametrize(("one", "other"), [("", "5"), ("5", ""), ("abc", "abd"), ("5", "5"), ("10", "9")])
def test_versions_that_are_not_older(one: str, other: str) -> None:
    assert not is_older(one, other)
    assert is_older("9", "10")


def test_a_list_is_compared() -> None:
    one = cache()
    for name in "abc":
        put(one, raw(name, 5))
    draft: dict[str, Any] = {}
    for data in (raw("a", 5), raw("b", 6, "10.0.0.6"), raw("d", 7)):
        one.add_to(draft, data)
    assert one.missing(draft) == {"default/c"}
    changes = {change.key: (change.old is None, change.new is None) for change in one.accept(draft)}
    assert changes == {"default/b": (False, False), "default/c": (False, True), "default/d": (True, False)}


def test_what_is_held_stays_until_it_is_released_or_seen() -> None:
    one = cache()
    for name in "abc":
        put(one, raw(name, 5))
    assert one.accept({}, frozenset({"default/a", "default/b", "default/c"})) == []
    assert put(one, raw("b", 2, "10.0.0.2")) is not None  # an older version, of a server that was restored
    assert one.delete(metadata_of(raw("c", 9))) is not None
    assert one.held == {"default/a"}
    assert [change.key for change in one.release()] == ["default/a"]
    assert view(one) == {"default/b": ("10.0.0.2",)}


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"metadata": 5}', b"{", b'{"metadata": {"name": 5}}'])
def test_an_object_without_metadata_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        metadata_of(data)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=25), st.randoms(use_true_random=False))
def test_any_order_of_events_gives_what_a_list_gives(deeds: list[tuple[str, bool]], rng: random.Random) -> None:
    """Each event may come twice and at any time; the newest one counts."""
    events: list[tuple[bool, bytes]] = []
    there: dict[str, Obj] = {}
    for version, (name, is_deleted) in enumerate(deeds, 10):
        if is_deleted and name not in there:
            continue
        data = raw(name, version, f"10.0.0.{version}")
        events.append((is_deleted, data))
        there.pop(name, None)
        if not is_deleted:
            there[name] = msgspec.json.decode(data)
    events *= 2
    rng.shuffle(events)
    one = cache()
    for is_deleted, data in events:
        if is_deleted:
            one.delete(metadata_of(data))
        else:
            put(one, data)
    assert view(one) == {f"default/{name}": essence(obj) for name, obj in there.items()}


def test_a15_a_slice_says_when_its_endpoints_changed() -> None:
    def sliced(version: int, when: str, address: str) -> bytes:
        obj = slice_of("web", address)
        obj["metadata"]["resourceVersion"] = str(version)
        obj["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": when}
        return msgspec.json.encode(obj)

    one = ObjectCache(resources("n")[1])
    found = put(one, sliced(1, "2026-01-01T00:00:00.123456789Z", "10.0.0.1"))
    assert found is not None
    assert found.triggered_at == pytest.approx(1767225600.123, abs=0.001)
    assert put(one, sliced(2, "2026-01-01T00:00:05Z", "10.0.0.1")) is None  # its endpoints are the same
    draft: Draft = {}
    one.add_to(draft, sliced(3, "2026-01-01T00:00:09Z", "10.0.0.2"))
    (change,) = one.accept(draft)
    assert change.triggered_at == 1767225609
    for number, text in enumerate(("", "soon", "9999999999999")):
        found = put(one, sliced(10 + number, text, f"10.0.1.{number}"))
        assert found is not None
        assert found.triggered_at == 0
    gone = one.delete(metadata_of(sliced(20, "2026-01-01T00:00:09Z", "10.0.1.2")))
    assert gone is not None
    assert gone.triggered_at == 0


def test_endpoints_that_stay_are_the_same_objects_after_a_change() -> None:
    """A burst of changes uses no more memory."""
    one = ObjectCache(next(each for each in resources("n") if each.kind == "EndpointSlice"))

    def put_slice(version: int, *addresses: str) -> Any:
        ends = [{"addresses": [address], "conditions": {"ready": address != "10.0.0.9"}} for address in addresses]
        obj = {
            "metadata": {
                "name": "a", "namespace": "default", "resourceVersion": str(version),
                "labels": {"kubernetes.io/service-name": "a"},
            },
            "addressType": "IPv4", "ports": [{"port": 80}], "endpoints": ends,
        }  # fmt: skip
        put(one, msgspec.json.encode(obj))
        return one.get("default/a")

    old = put_slice(1, "10.0.0.1", "10.0.0.2")
    new = put_slice(2, "10.0.0.2", "10.0.0.9")
    assert [each.address[3] for each in new.endpoints] == [2, 9]
    assert new.endpoints[0] is old.endpoints[1]
