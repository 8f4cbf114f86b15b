/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains incremental checksums (RFC 1624 eq. 3: HC' = ~(~HC + ~m + m')). Differences are u64 sums of words as they
 * lie in memory, so byte order does not matter (RFC 1071 §2.B). ~m + m' is computed as m' + 0xffffffff * words - m.
 */
#pragma once
#include "l4.h"
#include "types.h"

#define CSUM_ONES 0xffffffffULL

/* Folds a sum of less than 2^47 into 16 bits; 0 only for 0. With the sum's halves a, b, c (from the lowest), the product's halves
 * are a, a+b, a+b+c, a+b+c, each with the carry of the one below: the last one is the end-around sum. */
AI u64 csum_fold(u64 sum)
{
	return sum * 0x0001000100010001ULL >> 48;
}

AI u64 addr_sum(const lb_addr *a)
{
#if LB_FAMILY == 4
	return a->w[0];
#else
	return (a->w[0] & 0xffffffff) + (a->w[0] >> 32) + (a->w[1] & 0xffffffff) + (a->w[1] >> 32);
#endif
}

#if LB_FAMILY == 6
/* Sum of the 32-bit halves of four words: the sum of the words, with each upper half counted once instead of 2^32 times. */
AI u64 addr_sum2(const lb_addr *a, const lb_addr *b)
{
	u64 upper = (a->w[0] >> 32) + (a->w[1] >> 32) + (b->w[0] >> 32) + (b->w[1] >> 32);

	return a->w[0] + a->w[1] + b->w[0] + b->w[1] - (upper << 32) + upper;
}
#endif

/* Change of the sum when an address is replaced. */
AI u64 addr_diff(const lb_addr *from, const lb_addr *to)
{
	return addr_sum(to) + CSUM_ONES * ADDR_HALVES - addr_sum(from);
}

/* Change of the sum when a 16-bit word is replaced. */
AI u64 word_diff(u16 from, u16 to)
{
	return (u64)to + 0xffff - from;
}

/* Returns the checksum field after a change by `diff`. */
AI u16 csum_apply(u16 field, u64 diff)
{
	return (u16)~csum_fold(diff + 0xffff - field);
}

/* The same for UDP, where a field of 0 means "none": 0 is sent as 0xffff (RFC 768). */
AI u16 csum_apply_udp(u16 field, u64 diff)
{
	u16 sum = csum_apply(field, diff);

	return sum ? sum : 0xffff;
}

/* The same for the checksum of a balanced L4 protocol. */
AI u16 l4_csum_apply(u8 proto, u16 field, u64 diff)
{
	return l4_csum_is_optional(proto) ? csum_apply_udp(field, diff) : csum_apply(field, diff);
}
