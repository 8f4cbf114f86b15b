"""KernelMaps and the results of bpf(2): errors, kernels without batches, a resize meanwhile; no descriptor is left open."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from lbagent.errors import KernelError, LayoutMismatch, MapFull, NotFound
from lbagent.kernel import bpf_map, bpfsys
from lbagent.kernel.cpus import possible_cpus
from lbagent.maps import kernel_maps as kernel_maps_module
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.specs import Sizes, map_specs
from tests.lab.open_files import open_files
from tests.maps.conftest import SMALL

pytestmark = [pytest.mark.root, pytest.mark.bpf]
OTHER = Sizes(**{**{name: getattr(SMALL, name) for name in Sizes.__dataclass_fields__}, "flow4": 1 << 11})


def key(number: int) -> bytes:
    return struct.pack("=I", number)


def row(number: int) -> bytes:
    return number.to_bytes(12, "big")


def table(ident: int) -> bytes:
    return struct.pack("=251I", *[ident] * 251)


def no_batch(*_):
    return bpf_map.Batch(0, bpfsys.ENOTSUPP)


# --- opening ---


def test_maps_are_made_with_the_default_sizes_where_none_are_given(bpffs, monkeypatch):
    monkeypatch.setattr(kernel_maps_module, "Sizes", lambda: SMALL)
    before = open_files()
    with KernelMaps.open(bpffs) as maps:
        assert maps.sizes == SMALL
        assert maps.bpffs == Path(bpffs)
    assert open_files() <= before


@pytest.mark.parametrize(("name", "needed"), [("lb_filter", True), ("lb_neighbor", False)])
def test_a_look_at_maps_of_which_one_is_missing(bpffs, name, needed):
    """Those that an earlier version did not have yet may be missing."""
    KernelMaps.open(bpffs, SMALL).close()
    os.unlink(f"{bpffs}/v1/{name}")
    before = open_files()
    if needed:
        with pytest.raises(NotFound, match=f"no map {name} under .*/v1: no agent has run"):
            KernelMaps.open(bpffs, create=False)
    else:
        with KernelMaps.open(bpffs, create=False) as maps:
            assert name not in maps.specs
    assert open_files() <= before
    assert not os.path.exists(f"{bpffs}/v1/{name}")


@pytest.mark.parametrize(("wrong", "found"), [(0, True), (4, True), (5, False)])
def test_a_look_while_another_process_changes_the_sizes(bpffs, monkeypatch, wrong, found):
    """Pins are renamed one after the other: for a moment they fit no sizes."""
    KernelMaps.open(bpffs, SMALL).close()
    answers = iter([OTHER] * wrong + [SMALL])
    monkeypatch.setattr(pins, "pinned_sizes", lambda _: next(answers))
    before = open_files()
    if found:
        with KernelMaps.open(bpffs, create=False) as maps:
            assert maps.sizes == SMALL
    else:
        with pytest.raises(LayoutMismatch):
            KernelMaps.open(bpffs, create=False)
    assert open_files() <= before


def test_sizes_that_are_given_are_compared_once(bpffs, monkeypatch):
    KernelMaps.open(bpffs, SMALL).close()
    real, calls = pins.open_pins, []
    monkeypatch.setattr(pins, "open_pins", lambda *args: calls.append(args) or real(*args))
    with pytest.raises(LayoutMismatch):
        KernelMaps.open(bpffs, OTHER)
    assert len(calls) == 1


def test_maps_take_the_place_of_others(kernel_maps):
    old, new = kernel_maps.fd("lb4_flow"), pins.create_map(map_specs(OTHER)["lb4_flow"])
    kept, names = kernel_maps.fd("lb6_flow"), set(kernel_maps.specs)
    ident = bpf_map.map_info(new).id
    kernel_maps.replace({"lb4_flow": new}, OTHER)
    assert bpf_map.map_info(kernel_maps.fd("lb4_flow")).id == ident
    assert (kernel_maps.fd("lb4_flow"), kernel_maps.fd("lb6_flow"), kernel_maps.sizes) == (new, kept, OTHER)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(old)
    assert kernel_maps.specs["lb4_flow"].value_size == 32 << 11
    assert set(kernel_maps.specs) == names
    with kernel_maps.window("lb4_flow", (32 << 11) - 8, 8) as view:
        assert bytes(view) == bytes(8)


# --- entries ---


def test_a_per_cpu_map_has_a_value_a_cpu(kernel_maps):
    for name, size in (("lb_scratch", 256), ("lb_ratelimit", 16)):
        value = kernel_maps.get(name, key(0))
        assert value == bytes(size * possible_cpus())
        assert kernel_maps.items(name) == []


def test_a_full_map_says_so_without_batches_too(kernel_maps, monkeypatch):
    monkeypatch.setattr(bpf_map, "map_update_batch", no_batch)
    keys, values = b"".join(map(key, range(300))), b"".join(map(row, range(300)))
    with pytest.raises(MapFull) as caught:
        kernel_maps.put_batch("lb4_backend", keys, values, 10, 300)
    assert caught.value.done == 256
    assert sorted(kernel_maps.items("lb4_backend")) == sorted((key(n), row(n)) for n in range(10, 266))


def test_a_refused_entry_is_an_error_of_the_kernel_and_not_of_the_size(kernel_maps):
    """A prefix longer than the key."""
    entry = (struct.pack("=I", 99) + bytes(8), b"\1")
    for entries in ([entry], [entry, entry]):
        with pytest.raises(KernelError, match="lb4_source_range") as caught:
            kernel_maps.put_many("lb4_source_range", entries)
        assert not isinstance(caught.value, MapFull)
        assert (caught.value.errno, caught.value.done) == (errno.EINVAL, 0)


def test_each_key_is_deleted_once(kernel_maps, monkeypatch):
    real, calls = bpf_map.map_delete_batch, []

    def noted(fd, keys, size, start, stop):
        calls.append((start, stop))
        return real(fd, keys, size, start, stop)

    monkeypatch.setattr(bpf_map, "map_delete_batch", noted)
    kernel_maps.put_many("lb4_backend", [(key(n), row(n)) for n in range(4)])
    kernel_maps.delete_many("lb4_backend", [key(0), key(1), key(9), key(2)])
    assert calls == [(0, 4), (3, 4)]
    assert kernel_maps.items("lb4_backend") == [(key(3), row(3))]


def test_a_delete_that_fails_says_how_far_it_came(kernel_maps, monkeypatch):
    answers = iter([bpf_map.Batch(1, errno.ENOENT), bpf_map.Batch(1, errno.EPERM)])
    monkeypatch.setattr(bpf_map, "map_delete_batch", lambda *_: next(answers))
    with pytest.raises(KernelError, match="lb4_backend") as caught:
        kernel_maps.delete_many("lb4_backend", [key(n) for n in range(9)])
    assert (caught.value.errno, caught.value.done) == (errno.EPERM, 3)


def test_a_map_that_cannot_be_read_is_an_error(kernel_maps, monkeypatch):
    kernel_maps.put_many("lb4_backend", [(key(1), row(1))])

    def broken(_self):
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(bpf_map.BatchReader, "read", broken)
    with pytest.raises(KernelError, match="lb4_backend"):
        kernel_maps.items("lb4_backend")


def test_what_goes_while_it_is_read_one_by_one_is_passed_over(kernel_maps, monkeypatch):
    kernel_maps.put_many("lb4_backend", [(key(n), row(n)) for n in (1, 2, 3)])
    kernel_maps.set_maglev("lb4_maglev", {1: table(1), 2: table(2)})
    real = bpf_map.map_lookup

    def gone(fd, wanted, size):
        return None if wanted == key(2) else real(fd, wanted, size)

    def unsupported(_self):
        raise OSError(bpfsys.ENOTSUPP, "no batch")

    monkeypatch.setattr(bpf_map, "map_lookup", gone)
    monkeypatch.setattr(bpf_map.BatchReader, "read", unsupported)
    assert sorted(kernel_maps.items("lb4_backend")) == [(key(1), row(1)), (key(3), row(3))]
    assert kernel_maps.maglev("lb4_maglev") == {1: table(1)}


def test_a_window_is_closed_at_its_end(kernel_maps):
    with kernel_maps.window("lb_filter", 4096, 16) as view:
        pass
    with pytest.raises(ValueError, match="released"):
        bytes(view)


# --- Maglev ---


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.E2BIG, MapFull), (errno.ENOSPC, MapFull), (errno.EPERM, KernelError)]
)
def test_tables_that_find_no_room(kernel_maps, monkeypatch, number, kind):
    before = open_files()
    monkeypatch.setattr(bpf_map, "map_update_batch", lambda *_: bpf_map.Batch(0, number))
    with pytest.raises(KernelError, match="lb4_maglev") as caught:
        kernel_maps.set_maglev("lb4_maglev", {1: table(1), 2: table(2)})
    assert (type(caught.value), caught.value.errno, caught.value.done) == (kind, number, 0)
    assert open_files() <= before
    assert kernel_maps.maglev("lb4_maglev") == {}


def test_tables_leave_no_descriptor_open(kernel_maps, monkeypatch):
    before = open_files()
    kernel_maps.set_maglev("lb4_maglev", {1: table(1), 2: table(2)})
    kernel_maps.set_maglev("lb4_maglev", {3: table(1)})
    assert kernel_maps.maglev("lb4_maglev") == {1: table(1), 2: table(2), 3: table(1)}
    assert open_files() <= before

    def broken(*_):
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(bpf_map, "map_update", broken)
    with pytest.raises(KernelError, match="lb4_maglev") as caught:
        kernel_maps.set_maglev("lb4_maglev", {4: table(4)})
    assert caught.value.errno == errno.ENOMEM
    assert open_files() <= before
    assert 4 not in kernel_maps.maglev("lb4_maglev")


def test_tables_that_were_read_are_shared(bpffs):
    """After a start, an equal table of another service takes no second inner map."""
    with KernelMaps.open(bpffs, SMALL) as maps:
        maps.set_maglev("lb4_maglev", {1: table(1)})
    with KernelMaps.open(bpffs, SMALL) as maps:
        maps.maglev("lb4_maglev")
        maps.set_maglev("lb4_maglev", {2: table(1)})
        inner = {bpf_map.map_lookup(maps.fd("lb4_maglev"), key(ident), 4) for ident in (1, 2)}
        assert len(inner) == 1


# --- pins ---


def test_a_mount_is_told(bpffs):
    assert pins.ensure_pin_dir(bpffs) is True
    assert pins.ensure_pin_dir(bpffs) is False


def test_sizes_are_read_of_pins_and_of_those_laid_out_before_them(bpffs):
    KernelMaps.open(bpffs, SMALL).close()
    before = open_files()
    stage = pins.pin_dir(bpffs) / "stage"
    stage.mkdir()
    assert pins.pinned_sizes(bpffs, stage) == pins.pinned_sizes(bpffs) == SMALL
    fd = pins.create_map(map_specs(OTHER)["lb4_flow"])
    bpfsys.obj_pin(fd, str(stage / "lb4_flow"))
    os.close(fd)
    assert pins.pinned_sizes(bpffs, stage) == OTHER
    assert pins.pinned_sizes(bpffs) == SMALL
    assert open_files() <= before


def test_closed_descriptors_are_forgotten():
    fds = {"one": os.open("/dev/null", os.O_RDONLY)}
    pins.close_all(fds)
    pins.close_all(fds)
    assert fds == {}
