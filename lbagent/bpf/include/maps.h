/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the ways to a map: MAPFD/MAPVAL come from the generated prelude (symbolic descriptors the loader
 * replaces). A map of one big value is reached by direct pointer: no helper call, no key, no null check. Masks come from the
 * frozen configuration, which the verifier knows as constants, so bounded offsets cost one AND.
 */
#pragma once
#include "types.h"

#define FAMILY_FD(name) ((void *)bpf_pseudo_fd(1, FAMILY_MAP(name)))
#define FAMILY_VAL(name) ((u8 *)bpf_pseudo_fd(2, FAMILY_MAP(name)))
#define CFG ((const struct lb_config *)MAPVAL(lb_config))
#if LB_FAMILY == 4
#define CFG_FLOW_MASK (CFG->flow4_mask)
#define CFG_SNAT_MASK (CFG->snat4_mask)
#define CFG_FLOW_OLD_MASK (CFG->flow4_old_mask)
#define CFG_SNAT_OLD_MASK (CFG->snat4_old_mask)
#else
#define CFG_FLOW_MASK (CFG->flow6_mask)
#define CFG_SNAT_MASK (CFG->snat6_mask)
#define CFG_FLOW_OLD_MASK (CFG->flow6_old_mask)
#define CFG_SNAT_OLD_MASK (CFG->snat6_old_mask)
#endif
/* Are flows (SNAT slots) being moved here from a map of another size? Constants for the verifier: the code under them is not there
 * at any other time. docs/datapath.md, "Resizing". */
#define OLD_FLOWS (CFG_FLOW_OLD_MASK != 0)
#define OLD_SLOTS (CFG_SNAT_OLD_MASK != 0)

/* The clock: ticks of about one second, 16 bits. */
AI u64 now_ticks(void)
{
	return (jiffies() >> (CFG->jiffies_shift & 63)) & 0xffff;
}

AI void count(u32 index, u64 bytes)
{
	struct lb_counter *c = map_lookup(MAPFD(lb_metrics), &index);

	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
}
