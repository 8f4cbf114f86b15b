"""What the path record of a backend should be, and those of extra SNAT addresses (--snat-address). Pure.

Each of these is that of the first address with another source, so what is planned for a backend is planned for them with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from lbagent.maps import backend_codec
from lbagent.model.backend import Backend
from lbagent.model.extra_snat_sources import MAX_EXTRA_SNAT, extra_snat_stride
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.targets.bpf.shadow import Shadow


def path_record(backend: Backend, info: PathInfo, old: bytes, *, selectable: bool) -> bytes:
    """Return the path record a backend that is reached so should have; `old` is the one under its id.

    A path keeps its source address as long as it may (`PathInfo.kept`): the backend's flows have that address. Flows keep the mode
    they were made with. Where a live backend is no longer local, those that kept the client's address need its replies to be
    looked at until it is gone, so its record remembers what it was.
    """
    size, address = len(old), backend.address.address
    flags, gen = backend_codec.path_flags(old), old[backend_codec.GEN_AT[size]]
    mine = backend_codec.is_live(old) and old.startswith(address)
    if mine and info.kept:
        source = old[len(address) : 2 * len(address)]
        if source != info.snat and source in info.kept:
            info = replace(info, snat=source)
    was_local = mine and backend_codec.may_keep_client(flags)
    return backend_codec.path_value(backend, info, gen, selectable=selectable, was_local=was_local)


def extra_snat_ids(shadow: Shadow, family: Family, ident: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, id, record as it is now) of every extra SNAT address that the backend with this id can have.

    Ids that are a backend's own are left out, in whichever family: both count by id.
    """
    stride = extra_snat_stride(shadow.sizes.backends)
    if ident >= stride:
        return  # from a time without extra SNAT addresses, when ids went up to the end
    for number in range(1, MAX_EXTRA_SNAT + 1):
        other = ident + number * stride
        if other not in shadow.refs and all(rows.is_clear(other) for rows in shadow.backend_rows.values()):
            yield number, other, shadow.paths[family].get(other)


def live_extra_snat_ids(shadow: Shadow, family: Family, ident: int) -> Iterator[tuple[int, bytes]]:
    """Yield (id, record) of the extra SNAT addresses by which a backend's flows may be forwarded now."""
    if shadow.extra_snat_paths:
        for _, other, record in extra_snat_ids(shadow, family, ident):
            if backend_codec.is_live(record):
                yield other, record


def extra_snat_records(
    shadow: Shadow, family: Family, ident: int, first: bytes, info: PathInfo
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (id, record as it is, record as it should be) where these differ; `first` is the backend's own live record.

    The generation is the old one's: it must be the next one when a flow of the old record must not use the new one (`moved`).
    """
    if not (info.extra_snat or shadow.extra_snat_paths):
        return
    width = family.address_bytes
    mine = first[width : 2 * width]  # an address that is the first here has its ports already
    wanted = {source.number: source for source in info.extra_snat if source.address != mine}
    for number, other, old in extra_snat_ids(shadow, family, ident):
        lives = backend_codec.is_live(old)
        source = wanted.get(number)
        if source is not None:
            new = backend_codec.extra_snat_value(first, source, old[backend_codec.GEN_AT[len(old)]])
        elif lives:
            new = backend_codec.path_tombstone(old)
        else:
            continue
        if new != old:
            yield other, old, new


def extra_snat_addresses(shadow: Shadow, family: Family, ident: int) -> list[bytes]:
    """Return the extra SNAT addresses of a backend, also those that no device has now."""
    return [backend_codec.path_of(record).snat for _, record in live_extra_snat_ids(shadow, family, ident)]


def of_backends(shadow: Shadow, counts: Mapping[int, int]) -> dict[int, int]:
    """Return counts by id with those of extra SNAT addresses added to their backends."""
    stride = extra_snat_stride(shadow.sizes.backends)
    out: dict[int, int] = {}
    for ident, count in counts.items():
        number = number_of(shadow, ident) if ident >= stride else 0
        backend = ident - number * stride
        out[backend] = out.get(backend, 0) + count
    return out


def number_of(shadow: Shadow, ident: int) -> int:
    """Return for which source address of its backend an id stands, or stood last; 0: the first."""
    return max(backend_codec.extra_snat_number(paths.get(ident)) for paths in shadow.paths.values())


def ids_of(shadow: Shadow, ident: int) -> list[int]:
    """Return the ids under which a backend's packets are counted, its own first."""
    stride = extra_snat_stride(shadow.sizes.backends)
    others = range(ident + stride, shadow.sizes.backends, stride) if shadow.extra_snat_paths and ident < stride else ()
    return [ident, *(other for other in others if number_of(shadow, other))]
