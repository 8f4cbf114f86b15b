"""The lb_config record."""

from __future__ import annotations

import pytest

from lbagent.bpf.load import program_settings
from lbagent.kernel import jiffies
from lbagent.maps.flow_layout import FLOW_LAYOUT
from lbagent.maps.layout import LB_CONFIG
from lbagent.maps.specs import Sizes
from lbagent.model.extra_snat_sources import ExtraSnatSources


def unpack(record):
    return dict(zip([name for name, _ in LB_CONFIG.fields], LB_CONFIG.unpack(record), strict=True))


@pytest.mark.parametrize(("hz", "shift"), [(100, 7), (250, 8), (300, 8), (1000, 10)])
def test_a_tick_is_about_a_second(hz, shift):
    assert program_settings.tick_shift(hz) == shift
    assert 0.8 < (1 << shift) / hz < 1.3


def test_record_has_masks_ports_and_ticks():
    options = program_settings.ProgramSettings(
        snat_port_min=3000, snat_port_max=4000, timeout_tcp_s=1024, external_clusterip=False, echo_reply=False
    )
    found = unpack(
        program_settings.pack_config(options, Sizes(flow4=1 << 12, backends=1 << 9), program_settings.Seeds(5, 6), 250)
    )
    assert (found["seed0"], found["seed1"]) == (5, 6)
    assert (found["flow4_mask"], found["path_mask"]) == (4095, 511)
    assert (found["snat_port_min"], found["snat_port_max"]) == (3000, 4000)
    assert found["timeout_tcp"] == 1000  # 1024 s in ticks of 1.024 s
    assert found["flags"] == 0
    assert found["hz"] == 250
    assert found["flow_layout"] == FLOW_LAYOUT


def test_ports_of_replies_are_read_back_also_from_a_record_without_them():
    options = program_settings.ProgramSettings(snat_port_min=3000, snat_port_max=4000, reply_ports=(1024, 4000))
    record = program_settings.pack_config(options, Sizes(), program_settings.Seeds(5, 6), 250)
    assert program_settings.reply_ports_of(record) == (1024, 4000)
    assert program_settings.snat_ports_of(record) == (3000, 4000)
    older = record[: LB_CONFIG.offsets()["reply_port_min"]]
    assert program_settings.reply_ports_of(older) == (3000, 4000)


def test_extra_snat_source_addresses_are_read_back_with_their_numbers():
    extra_snat = ExtraSnatSources((b"\x0a\0\0\7", b"", b"\x0a\0\0\x09"), (b"\xfd" + bytes(14) + b"\7",))
    options = program_settings.ProgramSettings(extra_snat=extra_snat)
    record = program_settings.pack_config(options, Sizes(backends=1 << 10), program_settings.Seeds(5, 6), 250)
    found = unpack(record)
    assert found["extra_snat_stride"] == 204
    assert [found[f"extra_snat4_{n}"] for n in (1, 2, 3, 4)] == [0x0700000A, 0, 0x0900000A, 0]
    assert (found["extra_snat6_1_first"], found["extra_snat6_1_second"]) == (0xFD, 7 << 56)
    assert program_settings.extra_snat_of(record).renumbered(extra_snat.addresses()) == extra_snat
    before = record[: LB_CONFIG.offsets()["netns_cookie"]]  # as the version without socket programs wrote it
    assert program_settings.extra_snat_of(before) == program_settings.extra_snat_of(record)
    none = program_settings.pack_config(program_settings.ProgramSettings(), Sizes(), program_settings.Seeds(5, 6), 250)
    assert unpack(none)["extra_snat_stride"] == 0
    assert not program_settings.extra_snat_of(none).addresses()
    assert not program_settings.extra_snat_of(none[:200]).addresses(), "as an earlier version wrote it"


def test_only_tables_of_another_size_are_moved():
    old, new = Sizes(flow4=1 << 12, snat6=1 << 11), Sizes(flow4=1 << 13, snat6=1 << 11)
    found = unpack(
        program_settings.pack_config(program_settings.ProgramSettings(), new, program_settings.Seeds(1, 1), 250, old)
    )
    assert [found[f"{name}_old_mask"] for name in ("flow4", "flow6", "snat4", "snat6")] == [4095, 0, 0, 0]
    found = unpack(
        program_settings.pack_config(program_settings.ProgramSettings(), new, program_settings.Seeds(1, 1), 250)
    )
    assert not any(found[f"{name}_old_mask"] for name in ("flow4", "flow6", "snat4", "snat6"))


def test_no_time_out_becomes_zero_ticks():
    options = program_settings.ProgramSettings(timeout_closing_s=0)
    assert (
        unpack(program_settings.pack_config(options, Sizes(), program_settings.Seeds(1, 1), 100))["timeout_closing"]
        == 1
    )


def test_seeds_are_read_back_and_zero_means_never_written():
    record = program_settings.pack_config(
        program_settings.ProgramSettings(), Sizes(), program_settings.Seeds(7, 9), 250
    )
    assert program_settings.Seeds.from_record(record) == program_settings.Seeds(7, 9)
    assert program_settings.Seeds.from_record(bytes(len(record))) is None


@pytest.mark.root
@pytest.mark.bpf
def test_the_kernels_clock_is_one_of_its_rates():
    assert jiffies.hz() in (100, 250, 300, 1000)
