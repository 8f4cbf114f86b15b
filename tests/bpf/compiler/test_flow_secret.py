"""Only the headers of the flow table use its layout: the sources are searched for the bits of its words.

maps/flow_layout.py defines the bits, for C and Python; their C constants are for the headers of the table only.
"""

import re
from pathlib import Path

import pytest

from lbagent.bpf.compiler.c_source import INCLUDE_DIR, flow_constants
from lbagent.maps import flow_layout

# What docs/datapath.md calls the flow table. All others use the functions these give.
TABLE = {
    "ct.h", "ct_entry.h", "ct_find.h", "ct_insert.h", "ct_key.h", "ct_refresh.h", "ct_state.h", "ct_value.h",
    "ct_delete.h", "ct_walk.h", "handshake.h", "snat.h", "snat_migrate.h", "snat_slot.h",
}  # fmt: skip
# parts of the layout that no header takes apart: the first word of a record, and what only whole words are made of
UNUSED = {
    "E_OWNER", "SNAT_SLOT_HOLDER", "CHECKSUM", "CHECKSUM_MARK",
}  # fmt: skip
SHARED_MEMORY = {
    "types.h",
    "maps.h",
    "path.h",
    "prefilter.h",
    "vip.h",
    "sock_peer.h",
    "left_datagrams.h",
    "event.h",
    "flow_count.h",
    "flow_rules.h",
}  # read or write words of records that are no flows
BITS = re.compile(
    r"\b(?:V_[A-Z]\w*|OWNER_\w+|KEY_OWNER|KEY_CLIENT|REPLY_MARK|GEN_MASK|E_VALUE|E_SEEN|SEEN_\w+"
    r"|CT_(?:ENTRY_WORDS|WAY|VERSION\w*|STAMPS)|SNAT_SLOT_\w+|SNAT_META_\w+|value_at|seen_at)\b"
)
# what is generated of the words (states and ways of forwarding are for everyone)
GENERATED = {
    *flow_constants(),
    *(name for name, value in vars(flow_layout).items() if name.isupper() and type(value) is int),
    *(f"FIN_{fin.name}" for fin in flow_layout.Fin),
}
WORDS = re.compile(r"\b(?:RD16|RD64|WR8|WR16|WR64|CAS)\(")
HEADERS = sorted(INCLUDE_DIR.glob("*/*.h"))
OTHERS = [path for path in HEADERS if path.name not in TABLE]


def name(path: Path) -> str:
    """Return the name of a test case."""
    return path.name


def code(path: Path) -> str:
    """Return the header without its comments."""
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def test_the_headers_of_the_table_are_there() -> None:
    """A header that was renamed must be renamed here."""
    assert {path.name for path in HEADERS} >= TABLE | SHARED_MEMORY


@pytest.mark.parametrize("path", OTHERS, ids=name)
def test_only_the_table_knows_its_bits(path: Path) -> None:
    """A change of the layout concerns only the headers of the table."""
    text = code(path)
    assert not BITS.findall(text)
    assert not GENERATED.intersection(re.findall(r"\w+", text))


def test_each_generated_place_is_of_use_or_named() -> None:
    """If a header has a number of the layout by hand, the generated one is unused."""
    used = {word for path in HEADERS if path.name in TABLE for word in re.findall(r"\w+", code(path))}
    fields = {re.sub(r"_(?:SHIFT|BITS|MASK)$", "", name) for name in flow_constants()}
    unused = {
        field for field in fields if not used & {field, *(f"{field}_{part}" for part in ("SHIFT", "BITS", "MASK"))}
    }
    assert unused == UNUSED


@pytest.mark.parametrize("path", OTHERS, ids=name)
def test_only_the_table_touches_its_words(path: Path) -> None:
    """Loads, stores and compare-and-swaps of shared words are in the headers of their records."""
    assert path.name in SHARED_MEMORY or not WORDS.findall(code(path))


def test_path_records_are_no_way_around() -> None:
    """The headers of other records use no compare-and-swap. The rate of a Service, which several CPUs write, is an exception."""
    assert not any("CAS(" in code(path) for path in HEADERS if path.name in SHARED_MEMORY - {"types.h", "flow_rules.h"})


@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_no_protocol_is_the_rest(path: Path) -> None:
    """ "TCP, else UDP" takes the third protocol for the second: such choices are tables in l4.h."""
    text = code(path)
    assert not re.search(r"PROTO_(?:TCP|UDP)\s*\?[^:;]*PROTO_|OWNER_IS_UDP|PATH_UDP|is_udp", text)
    assert not re.search(r"PROTO_UDP\s*\)?\s*\?", text)
    assert path.name == "l4.h" or not re.search(r"PROTO_TCP\s*\)?\s*\?\s*(?:TCP_HLEN|TCP_CSUM|\d+)", text)
