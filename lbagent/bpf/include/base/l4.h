/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the facts about L4 protocols: numbers, header lengths, place of the checksum, and whether it may be absent.
 * Flow entries and path records hold a protocol as two bits (enum l4), the hashes take its IANA number.
 *
 * `proto` is an IANA number as in a packet, `l4` one of enum l4 kept as u64 (an enum would be 32 bits wide, and BPF would widen it
 * at every use). A new protocol needs its column in the tables here, l4_is_supported(), and its checksum in hook_write_*.h.
 */
#pragma once
#include "types.h"
#include "wire.h"

enum l4 {
	L4_TCP = 0,
	L4_UDP = 1,
	L4_SCTP = 2,
	L4_NONE = 3, /* no protocol with ports */
};

_Static_assert(L4_TCP == PATH_L4_TCP && L4_UDP == PATH_L4_UDP && L4_SCTP == PATH_L4_SCTP && L4_NONE == PATH_L4_NONE, "as in maps/layout.py");

#define L4_BITS 3ULL
#define L4_TABLE(l4, tcp, udp, sctp) (((u64)((tcp) | (udp) << 8 | (sctp) << 16) >> ((l4) << 3)) & 0xff) /* L4_NONE: 0 */

/* Returns enum l4 of TCP, UDP or SCTP at bit `shift` of a word; no meaning for other numbers. Bits 6 and 7 of five times the number
 * are its enum: two instructions where the shift is a constant, as the fast path has it. */
#define L4_FIELD(proto, shift) ((u64)(proto) * 5 << ((shift) - 6) & L4_BITS << (shift))

_Static_assert(L4_FIELD(PROTO_TCP, 14) == (u64)L4_TCP << 14 && L4_FIELD(PROTO_UDP, 14) == (u64)L4_UDP << 14 &&
	       L4_FIELD(PROTO_SCTP, 14) == (u64)L4_SCTP << 14, "the two bits of a protocol");

AI u64 l4_of(u8 proto)
{
	return L4_FIELD(proto, 6) >> 6;
}

/* Returns the IANA number, 0 for L4_NONE. */
AI u64 l4_number(u64 l4)
{
	return L4_TABLE(l4, PROTO_TCP, PROTO_UDP, PROTO_SCTP);
}

/* Is it a protocol that lbagent balances? */
AI bool l4_is_supported(u8 proto)
{
	return proto == PROTO_TCP || proto == PROTO_UDP || proto == PROTO_SCTP;
}

/* Returns the bytes of a header without options. */
AI u64 l4_hlen(u64 l4)
{
	return L4_TABLE(l4, TCP_HLEN, UDP_HLEN, SCTP_HLEN);
}

/* Returns the offset of the checksum in the header, bytes. That of SCTP is a CRC32c, four bytes wide (crc32c.h). */
AI u64 l4_csum_at(u64 l4)
{
	return L4_TABLE(l4, TCP_CSUM, UDP_CSUM, SCTP_CSUM);
}

/* May a packet omit its checksum? The field is 0 then (RFC 768). */
AI bool l4_csum_is_optional(u8 proto)
{
	return proto == PROTO_UDP;
}

/* Is the checksum absent? `field`: as loaded from l4_csum_at(). */
AI bool l4_csum_is_absent(u8 proto, u16 field)
{
	return l4_csum_is_optional(proto) && !field;
}

/* Is the number that of ICMP for IPv4 or for IPv6? Only PROTO_ICMP_FAMILY belongs to this family. */
AI bool proto_is_icmp(u8 proto)
{
	return proto == PROTO_ICMP || proto == PROTO_ICMP6;
}

/* Is this an IPv6 extension header (RFC 8200 §4)? The fragment header and AH are, too. */
AI bool proto_is_extension(u8 next)
{
	return next == NH_HOP_BY_HOP || next == NH_ROUTING || next == NH_FRAGMENT || next == NH_AUTH || next == NH_DEST_OPTIONS;
}
