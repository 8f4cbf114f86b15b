/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the rewriting of a packet: addresses, ports, hop count, checksums. One function for both directions.
 * On tc the checksums go through the kernel's helpers, which know about CHECKSUM_PARTIAL; there pointers into the packet are
 * stale afterwards.
 */
#pragma once
#include "csum.h"
#include "parse.h"

/* The tuple a packet shall have. */
struct lb_tuple {
	lb_addr saddr, daddr;
	__be16 sport, dport;
};

#define L4_CSUM(proto) ((proto) == PROTO_TCP ? 16 : 6) /* bytes into the L4 header */

AI void tuple_of(const struct lb_pkt *pk, struct lb_tuple *t)
{
	t->saddr = pk->saddr;
	t->daddr = pk->daddr;
	t->sport = pk->sport;
	t->dport = pk->dport;
}

/* A TTL (the low byte of its word: both architectures are little-endian) less 1: ~m + (m - 1). */
#define HOP_DIFF 0xfffe

#ifdef LB_HOOK_XDP
AI void nat_l3(u8 *l3, const struct lb_pkt *pk, const struct lb_tuple *to, u64 diff, u64 hops)
{
#if LB_FAMILY == 4
	if (hops) {
		diff += HOP_DIFF;
		l3[8] = pk->ttl - 1;
	}
	*(u16 *)(l3 + 10) = csum_apply(*(u16 *)(l3 + 10), diff);
	addr_store(l3 + 12, &to->saddr);
	addr_store(l3 + 16, &to->daddr);
#else
	if (hops)
		l3[7] = pk->ttl - 1;
	addr_store(l3 + 8, &to->saddr);
	addr_store(l3 + 24, &to->daddr);
#endif
}

/* Writes ports and checksum; `sum` is what addresses and ports change. Returns -1 if the frame is too short (not asked of a `plain` one). */
AI int nat_l4(u8 *l4, u8 *end, const struct lb_pkt *pk, const struct lb_tuple *to, u64 sum, bool plain)
{
	if (pk->proto == PROTO_TCP) {
		if (!plain && l4 + 18 > end)
			return -1;
		*(u16 *)(l4 + 16) = csum_apply(*(u16 *)(l4 + 16), sum);
	} else {
		if (!plain && l4 + UDP_HLEN > end)
			return -1;
		if (*(u16 *)(l4 + 6))
			*(u16 *)(l4 + 6) = csum_apply_udp(*(u16 *)(l4 + 6), sum);
	}
	*(u16 *)l4 = to->sport;
	*(u16 *)(l4 + 2) = to->dport;
	return 0;
}

AI u64 nat_ports(const struct lb_pkt *pk, const struct lb_tuple *to)
{
	return (u64)to->sport + to->dport + 2 * 0xffff - ((u64)pk->sport + pk->dport);
}

AI u64 nat_addresses(const struct lb_pkt *pk, const struct lb_tuple *to)
{
	return addr_diff(&pk->saddr, &to->saddr) + addr_diff(&pk->daddr, &to->daddr);
}

#if LB_FAMILY == 6
/* Sum of both addresses where they lie: cheaper by halves than of the words that were loaded. */
AI u64 nat_sum32(const u8 *p)
{
	u64 sum = 0;

#pragma unroll
	for (u64 n = 0; n < 2 * ADDR_HALVES; n++)
		sum += *(volatile u32 *)(p + n * 4);
	return sum;
}
#endif

AI u64 nat_diff(const u8 *l3, const struct lb_pkt *pk, const struct lb_tuple *to)
{
#if LB_FAMILY == 4
	return nat_addresses(pk, to);
#else
	return addr_sum2(&to->saddr, &to->daddr) + CSUM_ONES * 2 * ADDR_HALVES - nat_sum32(l3 + 8);
#endif
}

/* Writes `to` into the packet `pk` describes, taking `hops` (0 or 1) off its TTL. Returns -1 if the frame is too short.
 * `data`, `end`: the context's, which tc does not need. */
AI int nat_write(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops)
{
	u8 *l3 = data + L3_OFF(pk), *l4 = data + L4_OFF(pk);
	u64 diff;

	if (l3 + IP_HLEN > end)
		return -1;
	diff = nat_diff(l3, pk, to);
	if (!(pk->flags & PKT_LATER) && nat_l4(l4, end, pk, to, diff + nat_ports(pk, to), false))
		return -1;
	nat_l3(l3, pk, to, diff, hops);
	return 0;
}

/* The same for a plain frame of PLAIN_HLEN bytes or more, whose L4 checksum changes by `sum`, its addresses by `diff`. */
AI int nat_write_plain(lb_ctx *ctx, u8 *data, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops, u64 diff, u64 sum)
{
	nat_l4(data + ETH_HLEN + IP_HLEN, 0, pk, to, sum, true);
	nat_l3(data + ETH_HLEN, pk, to, diff, hops);
	return 0;
}
#else
#define L4_FLAGS(proto) ((proto) == PROTO_UDP ? 1 << 5 : 0) /* BPF_F_MARK_MANGLED_0: a UDP checksum of 0 stays 0 */
#define PSEUDO_HEADER (1 << 4)                                /* BPF_F_PSEUDO_HDR */
#define RECOMPUTE 1                                           /* BPF_F_RECOMPUTE_CSUM */

AI int nat_skb_l4(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_tuple *to, u64 diff)
{
	u64 at = L4_OFF(pk) + L4_CSUM(pk->proto), ports = word_diff(pk->sport, to->sport) + word_diff(pk->dport, to->dport);
	u16 both[2] = {to->sport, to->dport};

	/* addresses are in the pseudo header, which a partial checksum covers; ports are not */
	if (l4_csum(ctx, at, 0, csum_fold(diff), PSEUDO_HEADER | L4_FLAGS(pk->proto)) ||
	    l4_csum(ctx, at, 0, csum_fold(ports), L4_FLAGS(pk->proto)))
		return -1;
	return skb_store(ctx, L4_OFF(pk), both, sizeof(both), 0) ? -1 : 0;
}

AI int nat_write(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops)
{
	u64 diff = addr_diff(&pk->saddr, &to->saddr) + addr_diff(&pk->daddr, &to->daddr);
	lb_addr both[2] = {to->saddr, to->daddr};
	u8 ttl = pk->ttl - hops;

	if (!(pk->flags & PKT_LATER) && nat_skb_l4(ctx, pk, to, diff))
		return -1;
#if LB_FAMILY == 4
	diff += hops ? HOP_DIFF : 0;
	if (l3_csum(ctx, L3_OFF(pk) + 10, 0, csum_fold(diff), 0) || skb_store(ctx, L3_OFF(pk) + 8, &ttl, 1, 0))
		return -1;
	return skb_store(ctx, L3_OFF(pk) + 12, both, sizeof(both), 0) ? -1 : 0;
#else
	/* there is no header checksum to balance the addresses: the kernel must see the change in a CHECKSUM_COMPLETE sum */
	if (skb_store(ctx, L3_OFF(pk) + 7, &ttl, 1, RECOMPUTE))
		return -1;
	return skb_store(ctx, L3_OFF(pk) + 8, both, sizeof(both), RECOMPUTE) ? -1 : 0;
#endif
}
#endif
