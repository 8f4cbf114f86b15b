"""The devices by which this node can announce an address: those with programs, and with an address of the same network. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network

from lbagent.announce.announce_refusal import AnnounceRefusal, RefusalReason
from lbagent.net.snapshot import Link, NodeAddress, NodeNetwork
from lbagent.pools.announcement import L2Settings

ANY = ("0.0.0.0/0", "::/0")  # the reach of a node whose devices are named in the file
MAC_BYTES = 6


def announcing_devices(
    network: NodeNetwork, attached: Collection[str], carriers: Collection[int], settings: L2Settings, address: bytes
) -> tuple[dict[int, bytes], AnnounceRefusal | None]:
    """Return the MAC address with which each device announces an address, and the reason if no device does.

    `attached`: names of the devices whose programs would answer; `carriers`: devices by which frames can leave, by ifindex.
    """
    if network.has(address):
        return {}, AnnounceRefusal(RefusalReason.OWN_ADDRESS)
    near = {each.ifindex for each in network.addresses if _holds(each, address)}
    chosen = [link for link in network.links.values() if _is_chosen(link, near, settings)]
    if not chosen:
        return {}, AnnounceRefusal(RefusalReason.NO_NAMED_DEVICE if settings.devices else RefusalReason.NO_NETWORK)
    with_programs = [link for link in chosen if link.name in attached and len(link.mac) == MAC_BYTES]
    if not with_programs:
        return {}, AnnounceRefusal(RefusalReason.NO_PROGRAMS, _names(chosen))
    alive = {link.index: link.mac for link in with_programs if link.up and link.index in carriers}
    return alive, None if alive else AnnounceRefusal(RefusalReason.NO_CARRIER, _names(with_programs))


def _names(links: Iterable[Link]) -> str:
    return ", ".join(link.name for link in links)


def networks(
    network: NodeNetwork, attached: Collection[str], carriers: Collection[int], settings: L2Settings
) -> list[str]:
    """Return the networks whose addresses this node can announce, as text, sorted."""
    usable = {link.index for link in network.links.values() if link.name in attached and link.index in carriers}
    if settings.devices:
        there = any(_is_chosen(network.links[index], (), settings) for index in usable)
        return list(ANY) if there else []
    return sorted(
        {
            str(ip_network((each.address, each.bits), strict=False))
            for each in network.addresses
            if each.ifindex in usable
        }
    )


def is_within(address: bytes, texts: Collection[str]) -> bool:
    """Return whether an address is in one of these networks."""
    found = ip_address(address)
    return any(found in ip_network(text) for text in texts)


def _is_chosen(link: Link, near: Collection[int], settings: L2Settings) -> bool:
    if settings.devices:
        return any(fnmatchcase(link.name, pattern) for pattern in settings.devices)
    return link.index in near


def _holds(own: NodeAddress, address: bytes) -> bool:
    """Return whether an address is in the network of an address of this node; a network of a single address does not count."""
    width = 8 * len(address)
    if len(own.address) != len(address) or own.bits >= width:
        return False
    shift = width - own.bits
    return int.from_bytes(own.address) >> shift == int.from_bytes(address) >> shift
