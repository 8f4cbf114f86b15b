/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the reading and writing of an ICMP error and of the packet it quotes: IP header (options, bounded extension
 * headers) and at least 8 bytes of L4. Checksums are incremental, also quoted ones.
 *
 * Programs write the packet directly, also on tc: the message's own checksum compensates each change, so a CHECKSUM_COMPLETE sum
 * stays valid. Nothing compensates the IPv6 hop limit, so it is written by the kernel's helper.
 */
#pragma once
#include "nat.h"
#include "scratch.h"

#define QUOTE_HEADERS 4  /* IPv6 extension headers stepped over */
#define QUOTE_MASK 0x3ff /* bounds an offset in the frame: 511 + 8, and 60 or 255 of quoted headers */
#define QUOTE_PULL 512   /* bytes: what tc makes linear */

/* The quoted packet with source and destination exchanged, like an answer to it, so that the look-ups of packets find its flow.
 * l3_off and l4_off: offsets of the quoted headers. */
struct lb_quote {
	struct lb_pkt pk;
	u16 check; /* offset of the quoted L4 checksum; 0: not quoted, or not used */
};

/* It is in a map, behind the scratch record: a value read back from a map is unknown to the verifier, so it does not verify the
 * rest of the program once for each chain of quoted headers. */
_Static_assert(sizeof(struct lb_scratch) + sizeof(struct lb_quote) <= SCRATCH_SIZE, "the quote fits behind the scratch record");
#define QUOTE_OF(s) ((struct lb_quote *)((s) + 1))

AI bool icmp_is_error(u8 type)
{
#if LB_FAMILY == 4
	return type == 3 || type == 4 || type == 11 || type == 12; /* a redirect (5) is valid only on the link where it was sent */
#else
	return type >= 1 && type <= 4;
#endif
}

/* Returns the length of the quoted IP header with its extensions and the protocol behind it; 0: no L4 header follows. */
#if LB_FAMILY == 4
AI u64 quote_header(const u8 *l3, const u8 *end, u8 *proto)
{
	u64 size = IP4_HEADER_BYTES(l3);

	if (*l3 >> 4 != 4 || size < IP_HLEN || *(u16 *)(l3 + IP4_FRAGMENT) & IP4_FRAGMENT_OFFSET)
		return 0;
	*proto = l3[IP4_PROTO];
	return size;
}
#else
AI u64 quote_header(const u8 *l3, const u8 *end, u8 *proto)
{
	u64 size = IP_HLEN;
	u8 next = l3[IP6_NEXT_HEADER];

	if (*l3 >> 4 != 6)
		return 0;
	NO_UNROLL
	for (u64 n = 0; n < QUOTE_HEADERS; n++) {
		const u8 *h = l3 + size;

		if (!proto_is_extension(next) || next == NH_AUTH)
			break;
		if (h + EXT_MIN_HLEN > end || (next == NH_FRAGMENT && *(u16 *)(h + EXT_FRAGMENT) & EXT_FRAGMENT_OFFSET))
			return 0;
		size += next == NH_FRAGMENT ? EXT_MIN_HLEN : (h[EXT_HLEN] + 1) * 8;
		next = *h;
		if (size > 255)
			return 0;
	}
	*proto = next;
	return size;
}
#endif

/* Reads the quoted headers. Returns false if they are not those of a TCP, UDP or SCTP packet of this family. SCTP's checksum is not
 * corrected: a quote seldom has all that it covers, and its receiver looks at ports and tag alone. */
AI bool quote_read(lb_ctx *ctx, const struct lb_pkt *pk, struct lb_quote *q)
{
	u64 at = L4_OFF(pk) + ICMP_HLEN, limit = L3_OFF(pk) + pk->l3_len, size;
	u8 *end = CTX_END(ctx), *icmp = CTX_DATA(ctx) + L4_OFF(pk), *l3, *l4;

	OPAQUE(icmp);
	l3 = icmp + ICMP_HLEN;
	if (l3 + IP_HLEN > end || !icmp_is_error(icmp[ICMP_TYPE]))
		return false;
	size = quote_header(l3, end, &q->pk.proto);
	if (!size || !l4_is_supported(q->pk.proto))
		return false;
	addr_load(&q->pk.daddr, l3 + IP_SADDR);
	addr_load(&q->pk.saddr, l3 + IP_DADDR);
	l4 = l3 + size;
	OPAQUE(l4);
	if (l4 + L4_QUOTED_HLEN > end || at + size + L4_QUOTED_HLEN > limit)
		return false;
	q->pk.dport = *(u16 *)(l4 + L4_SPORT);
	q->pk.sport = *(u16 *)(l4 + L4_DPORT);
	q->pk.l3_off = at;
	q->pk.l4_off = at + size;
	q->check = at + size + l4_csum_at(l4_of(q->pk.proto));
	if (q->check + 2 > limit || q->pk.proto == PROTO_SCTP || l4_csum_is_absent(q->pk.proto, *(u16 *)(l4 + UDP_CSUM)))
		q->check = 0;
	return true;
}

/* Returns the address of `length` bytes at an offset of the frame, NULL if the frame is shorter. The loads are written out: the
 * compiler would keep the address of the context's field for the next load, which the verifier rejects. */
AI u8 *frame_at(lb_ctx *ctx, u64 offset, u64 length)
{
	u8 *p, *end;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(p) : "r"(ctx), "i"(__builtin_offsetof(lb_ctx, data)));
	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(end) : "r"(ctx), "i"(__builtin_offsetof(lb_ctx, data_end)));
	p += offset & QUOTE_MASK;
	OPAQUE(p);
	return p + length > end ? NULL : p;
}

/* Writes the tuple `to` into the quoted packet (source and destination as in the packet itself). Adds to `sum` what the ICMP
 * checksum must compensate. The quoted header's own checksum compensates quoted IPv4 addresses. */
AI bool quote_write(lb_ctx *ctx, const struct lb_quote *q, const struct lb_tuple *to, u64 *sum)
{
	u64 addresses = addr_diff(&q->pk.daddr, &to->saddr) + addr_diff(&q->pk.saddr, &to->daddr);
	u64 ports = word_diff(q->pk.dport, to->sport) + word_diff(q->pk.sport, to->dport);
	u8 *l3 = frame_at(ctx, q->pk.l3_off, IP_HLEN), *l4 = frame_at(ctx, q->pk.l4_off, L4_QUOTED_HLEN);

	if (!l3 || !l4)
		return false;
#if LB_FAMILY == 4
	*(u16 *)(l3 + IP4_CSUM) = csum_apply(*(u16 *)(l3 + IP4_CSUM), addresses);
	addr_store(l3 + IP4_SADDR, &to->saddr);
	addr_store(l3 + IP4_DADDR, &to->daddr);
#else
	addr_store(l3 + IP6_SADDR, &to->saddr);
	addr_store(l3 + IP6_DADDR, &to->daddr);
	*sum += addresses;
#endif
	*(u16 *)(l4 + L4_SPORT) = to->sport;
	*(u16 *)(l4 + L4_DPORT) = to->dport;
	*sum += ports;
	if (q->check) {
		u8 *check = frame_at(ctx, q->check, 2);
		u16 old, new;

		if (!check)
			return false;
		old = *(u16 *)check;
		new = l4_csum_apply(q->pk.proto, old, addresses + ports);
		*(u16 *)check = new;
		*sum += word_diff(old, new);
	}
	return true;
}

/* Writes the outer addresses and subtracts `hops` from the TTL; `sum` as above (ICMPv6 covers the addresses, ICMP does not). */
AI bool outer_write(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops, u64 *sum)
{
	u64 addresses = addr_diff(&pk->saddr, &to->saddr) + addr_diff(&pk->daddr, &to->daddr);
	u8 *l3, ttl = pk->ttl - hops;

	if (LB_FAMILY == 6 && HOOK_KERNEL_CSUM && !ctx_store_hop_limit(ctx, L3_OFF(pk) + IP_TTL, ttl))
		return false;
	l3 = frame_at(ctx, L3_OFF(pk), IP_HLEN);
	if (!l3)
		return false;
#if LB_FAMILY == 4
	l3[IP4_TTL] = ttl;
	*(u16 *)(l3 + IP4_CSUM) = csum_apply(*(u16 *)(l3 + IP4_CSUM), addresses + word_diff(pk->ttl, ttl));
	addr_store(l3 + IP4_SADDR, &to->saddr);
	addr_store(l3 + IP4_DADDR, &to->daddr);
#else
	if (!HOOK_KERNEL_CSUM)
		l3[IP6_HOP_LIMIT] = ttl;
	addr_store(l3 + IP6_SADDR, &to->saddr);
	addr_store(l3 + IP6_DADDR, &to->daddr);
	*sum += addresses;
#endif
	return true;
}

/* Rewrites the error: `outer` (addresses only), `quoted`. Returns 0, or -1 with a damaged frame. */
AI int icmp_write(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_quote *q, const struct lb_tuple *outer,
		  const struct lb_tuple *quoted, u64 hops)
{
	u64 sum = 0;
	u8 *icmp;

	if (!outer_write(ctx, pk, outer, hops, &sum) || !quote_write(ctx, q, quoted, &sum))
		return -1;
	icmp = frame_at(ctx, L4_OFF(pk), ICMP_HLEN);
	if (!icmp)
		return -1;
	*(u16 *)(icmp + ICMP_CSUM) = csum_apply(*(u16 *)(icmp + ICMP_CSUM), sum);
	return 0;
}
