"""The bits of an address are at the positions that the programs read."""

import random
import socket
import struct

import pytest

from lbagent.maps import prefilter
from lbagent.maps.prefilter import filter_position


@pytest.mark.parametrize(
    ("address", "position"),
    [
        (bytes((10, 96, 0, 1)), (0x0100600A * 0x9E3779B1 % (1 << 32)) >> 12),
        (bytes(16), 0),
        (struct.pack("<2Q", 1, 0), ((0x9E3779B97F4A7C15 ^ 0x9E3779B9) * 0xBF58476D1CE4E5B9 % (1 << 64)) >> 44),
        (struct.pack("<2Q", 0, 1), 0xBF58476D1CE4E5B9 >> 44),
    ],
)
def test_the_filter_hashes_words_as_the_kernel_loads_them(address, position):
    assert filter_position(address) == position


@pytest.mark.parametrize(
    ("vips", "pods"),
    [("fd00:96::", "fd00:244::"), ("fd00:10:96::", "fd00:10:244::"), ("2001:db8:1::", "2001:db8:1:1::")],
)
def test_neighbouring_ipv6_prefixes_do_not_lie_over_each_other(vips, pods):
    # 10,000 VIPs take 1 % of the positions; pods numbered alike must meet them by chance alone
    def numbered(prefix):
        base = int.from_bytes(socket.inet_pton(socket.AF_INET6, prefix), "big")
        return {filter_position((base + n).to_bytes(16, "big")) for n in range(1, 10001)}

    assert len(numbered(vips) & numbered(pods)) < 300


def test_filter_bits_lie_where_the_program_looks():
    """(address word x 0x9E3779B1) >> 12; two bits a position, then a plane of one bit a position."""
    address = bytes((1, 0, 0, 0))
    position = 0x9E3779B1 >> 12
    assert prefilter.vip_bit(address) == 2 * position
    assert prefilter.snat_bits(address) == (2 * position, 2 * position + 1)
    assert prefilter.direct_bit(address) == 2 * position + 1
    assert prefilter.source_bit(address) == 2 * (1 << 20) + position
    assert position % 2 == 1
    assert prefilter.datagram_bit(address) == 2 * (1 << 20) + position - 1, "the neighbour's"


@pytest.mark.parametrize(("record", "width"), [(16, 4), (4, 4), (6, 4), (64, 16)])
def test_positions_of_many_are_those_of_each(record, width):
    records = random.Random(1).randbytes(record * 50)
    each = [filter_position(records[at : at + width]) for at in range(0, len(records), record)]
    assert prefilter.filter_positions(records, record, width) == each
    assert sorted(prefilter.filter_positions(records * 2, record, width, once=True)) == sorted(each)


def test_both_halves_of_an_ipv6_address_count():
    """The sum of `prefilter_position6` in C: the mixed halves by xor, so that a bit that both have is 0."""
    high, low = 0x20010DB800010002, 0x123456789ABCDEF0
    word = high * 0x9E3779B97F4A7C15 % (1 << 64)
    mixed = word ^ word >> 32 ^ low
    assert filter_position(struct.pack("<2Q", high, low)) == (mixed * 0xBF58476D1CE4E5B9 % (1 << 64)) >> 44
