/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the access to maps: MAPFD/MAPVAL come from the generated prelude (symbolic descriptors the loader replaces). A
 * map of one big value is accessed through a direct pointer: no helper call, no key, no null check. Masks come from the frozen
 * configuration, whose values are constants for the verifier, so bounded offsets cost one AND.
 */
#pragma once
#include "race_point.h"
#include "trace.h"
#include "types.h"

#define FAMILY_FD(name) ((void *)map_word(MAP_WORD_FD, FAMILY_MAP(name)))
#define FAMILY_VAL(name) ((u8 *)map_word(MAP_WORD_VALUE, FAMILY_MAP(name)))
#if LB_FAMILY == 4
#define CFG_FLOW_MASK CFG(flow4_mask)
#define CFG_SNAT_MASK (CFG(snat4_mask))
#define CFG_FLOW_OLD_MASK (CFG(flow4_old_mask))
#define CFG_SNAT_OLD_MASK (CFG(snat4_old_mask))
#else
#define CFG_FLOW_MASK (CFG(flow6_mask))
#define CFG_SNAT_MASK (CFG(snat6_mask))
#define CFG_FLOW_OLD_MASK (CFG(flow6_old_mask))
#define CFG_SNAT_OLD_MASK (CFG(snat6_old_mask))
#endif
/* Are flows (SNAT slots) being moved here from a map of another size? Constants for the verifier, which removes the code under them
 * at any other time. docs/datapath.md, "Resizing". */
#define MIGRATING_FLOWS (CFG_FLOW_OLD_MASK != 0)
#define MIGRATING_SNAT (CFG_SNAT_OLD_MASK != 0)

/* This CPU's stripe of counters: one stripe per CPU in an array, so that the fast path needs no look-up. CPUs beyond the last share
 * stripe 0. */
AI u8 *counters_of(u64 cpu)
{
	if (UNLIKELY(cpu >= CFG(counter_stripes)))
		cpu = 0;
	return (u8 *)MAPVAL(lb_metrics) + cpu * CFG(counter_stripe_bytes);
}

AI u8 *counters(void)
{
	return counters_of(cpu_number());
}

AI void count_in(u8 *row, u64 index, u64 bytes)
{
	struct lb_counter *c = (struct lb_counter *)row + index;

	if (LB_IS_DRY)
		return;
	c->packets++;
	c->bytes += bytes;
}

/* Counts a packet under its reason. */
AI void count_reason(u8 *row, u64 reason, u64 bytes)
{
	TRACE(REASON, reason, 0);
	count_in(row, reason & (REASON_SLOTS - 1), bytes);
}

AI void count(u64 reason, u64 bytes)
{
	count_reason(counters(), reason, bytes);
}

/* Ticks since a moment before the boot, about one second each. */
AI u64 whole_ticks(void)
{
	return jiffies() >> CFG(jiffies_shift);
}

/* The clock for ages. Entries keep 16 bits of it, so an age is valid only modulo 65,536 ticks (18 hours). The sweeper removes
 * entries long before that. At the head of each stripe of counters (slot of REASON_NONE) it writes the tick until which no entry that
 * it left can have wrapped. Until then the clock has 16 bits, too. Later, when the agent has not swept for hours, the clock has all
 * its bits: no entry was seen "now", so all packets take the slow path, where a flow checks that it still holds its SNAT slot
 * (ct_flow_age_in_doubt()). */
AI u64 now_ticks_in(const u8 *row)
{
	u64 tick = whole_ticks();

	return LIKELY(tick <= RD64(row)) ? tick & 0xffff : tick;
}

/* The same clock off the fast path. No branch: the verifier would follow the code after it twice. So it would with a sign as a
 * mask of a constant, once for each value; with the two highest bits it does not, and the lowest bit of the mask is set in any case. */
AI u64 now_ticks(void)
{
	u64 tick = whole_ticks(), beyond = RD64(counters()) - tick;

	OPAQUE(beyond);
	beyond = (u64)((s64)beyond >> 62);
	OPAQUE(beyond);
	return tick & (beyond | 0xffff);
}
