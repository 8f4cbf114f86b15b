/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the tuple to which a packet is translated, and the change of its checksums. hook_write.h writes it.
 */
#pragma once
#include "crc32c.h"
#include "csum.h"
#include "parse.h"

/* The tuple of the translated packet. */
struct lb_tuple {
	lb_addr saddr, daddr;
	__be16 sport, dport;
};

AI void tuple_of(const struct lb_pkt *pk, struct lb_tuple *t)
{
	t->saddr = pk->saddr;
	t->daddr = pk->daddr;
	t->sport = pk->sport;
	t->dport = pk->dport;
}

/* A TTL (the low byte of its word: both architectures are little-endian) minus 1: ~m + (m - 1). */
#define HOP_DIFF 0xfffe

AI u64 nat_ports(const struct lb_pkt *pk, const struct lb_tuple *to)
{
	return (u64)to->sport + to->dport + 2 * 0xffff - ((u64)pk->sport + pk->dport);
}

AI u64 nat_addresses(const struct lb_pkt *pk, const struct lb_tuple *to)
{
	return addr_diff(&pk->saddr, &to->saddr) + addr_diff(&pk->daddr, &to->daddr);
}

#if LB_FAMILY == 6
/* Sum of both addresses in memory: halves are cheaper than the loaded words. */
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
	return addr_sum2(&to->saddr, &to->daddr) + CSUM_ONES * 2 * ADDR_HALVES - nat_sum32(l3 + IP6_SADDR);
#endif
}

/* The two ports of a header, as they lie in memory. */
AI u32 nat_port_word(u16 sport, u16 dport)
{
	return sport | (u32)dport << 16;
}

/* Returns the checksum of a whole SCTP packet after its ports change. One of 0 stays: the device computes it, or its receiver wants
 * none (RFC 9653). A wrong one stays wrong. */
AI u32 nat_crc32c(u32 field, const struct lb_pkt *pk, const struct lb_tuple *to)
{
	u64 difference = nat_port_word(pk->sport, pk->dport) ^ nat_port_word(to->sport, to->dport);

	if (UNLIKELY(!field))
		return 0;
	return field ^ crc32c_change(difference, pk->l3_len - (L4_OFF(pk) - L3_OFF(pk)));
}
