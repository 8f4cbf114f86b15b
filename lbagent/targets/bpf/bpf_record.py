"""What `lbagent record dump` has of the pins: the events as rows and as packets, and the entries of the maps. Changes nothing."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from lbagent.errors import KernelError, LbError, NotFound
from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.dump import Entry, entries
from lbagent.maps.event_reader import Event, EventReader
from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import PATH
from lbagent.maps.map_names import family_map
from lbagent.maps.pinned_maps import PinnedMaps
from lbagent.model.family import Family
from lbagent.model.service import CIDR
from lbagent.targets.bpf.capture_blocks import CaptureBlocks
from lbagent.targets.bpf.captured_packets import CapturedPackets, add_blocks
from lbagent.targets.bpf.event_rows import EventRows, NameOf
from lbagent.targets.bpf.packet_pairs import PacketPairs
from lbagent.targets.bpf.redacted_frame import redacted_frame
from lbagent.targets.client_addresses import ClientAddresses
from lbagent.targets.data_plane import RecordedPackets

_RANGE = "SRCRANGE"
_NO_RIGHT = (errno.EPERM, errno.EACCES)


def bpf_record(bpffs: str, name_of: NameOf, others: Collection[bytes], *, redact: bool) -> RecordedPackets:
    """Read the pins. `others`: addresses of Services that are known beside those in the maps.

    What cannot be read is left out, with a sentence. Raises NotFound without pins, KernelError without the right to read them.
    """
    found = RecordedPackets()
    blocks = CaptureBlocks()
    try:
        with KernelMaps.open(bpffs, create=False) as maps:
            if redact:
                found.clients = ClientAddresses({*others, *_service_addresses(maps)})
            found.maps = "".join(f"{_without_client(each, found.clients).text}\n" for each in entries(maps))
        _read_events(bpffs, name_of, blocks, found)
    except NotFound:
        raise
    except LbError as error:
        if isinstance(error, KernelError) and error.errno in _NO_RIGHT:
            raise
        found.problems.append(str(error))
    if not found.packets:
        found.packets = b"".join([blocks.head(), *blocks.statistics(0)])
    return found


def _read_events(bpffs: str, name_of: NameOf, blocks: CaptureBlocks, found: RecordedPackets) -> None:
    """Add the events that are in the rings. Raises LbError."""
    try:
        reader = EventReader(bpffs, last=None)
    except NotFound as error:  # --events 0
        found.problems.append(str(error))
        return
    packets = [blocks.head()]
    with reader, PinnedMaps(bpffs) as maps:
        texts = EventRows(maps, name_of)
        captured = CapturedPackets(texts, FlowFilter())
        events = [_redacted(event, found.clients) for event in reader.read()]
        for pair in PacketPairs().join(events, is_last=True):
            if (taken := captured.taken(pair)) is not None:
                add_blocks(packets, blocks, pair, taken)
        packets += blocks.statistics(reader.missed)
        rows = (texts.row(event) for event in events if not event.is_after)
        found.events = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)
    found.packets = b"".join(packets)


def _redacted(event: Event, clients: ClientAddresses | None) -> Event:
    return event if clients is None else replace(event, frame=redacted_frame(event.frame, clients))


def _service_addresses(maps: KernelMaps) -> Iterator[bytes]:
    """Yield the addresses of frontends, of backends (of some that are gone, too), and the sources of SNAT."""
    for family in Family:
        for key, _ in maps.items(family_map(family, "service")):
            yield frontend_codec.frontend_of(frontend_codec.split_service_key(key)[0]).address
        name, size = family_map(family, "path"), PATH[family].size
        with maps.window(name, 0, maps.specs[name].value_size) as view:
            records = bytes(view)
        for at in range(0, len(records), size):
            record = backend_codec.path_of(records[at : at + size])
            yield from filter(any, (record.address, record.snat))


def _without_client(entry: Entry, clients: ClientAddresses | None) -> Entry:
    """Return an entry of the maps; a source range of one address names a client."""
    if entry.kind != _RANGE or clients is None:
        return entry
    cidr = CIDR.parse(str(entry.words["CIDR"]))
    if cidr.bits < len(cidr.network) * 8:
        return entry
    words = entry.words | {"CIDR": str(CIDR(clients.replacement(cidr.network), cidr.bits))}
    return entry._replace(words=words)
