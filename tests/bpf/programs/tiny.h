/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

static void *(*map_lookup)(void *, const void *) = (void *)BPF_FUNC_map_lookup_elem;
static long (*tail_call)(void *, void *, u32) = (void *)BPF_FUNC_tail_call;

#define COUNT_ENTRY 1
#define COUNT_TAIL 2
#define COUNT_FELL_THROUGH 3
#define COUNT_MIXED 4
#define COUNT_EGRESS 5

static void count(u32 index)
{
	struct lb_counter *first = MAPVAL(lb_metrics); /* of the first CPU: a test runs these one at a time */

	first[index].packets++;
}
