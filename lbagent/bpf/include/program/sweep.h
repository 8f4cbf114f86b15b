/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the sweeper: the agent runs it by BPF_PROG_TEST_RUN over the flow table. It frees expired flows with their
 * SNAT slots, and counts flows per backend into one half of lb_live, those that have ended into lb_closing, too. A flow whose frontend was removed loses its backend, as
 * the fast path does not check the frontend. So does a UDP flow whose backend has left its frontend.
 *
 * The run's data is struct lb_sweep. One run does SWEEP_STEP buckets, advances `first` and reduces `count`, so that the kernel's
 * `repeat` does the rest; it returns (and stores in `live`) the live flows found since `live` was 0. If `trusted_until` is 0, it
 * becomes the tick until which ages are valid once the whole table is swept (now_ticks_in()).
 */
#pragma once
#include "ct_walk.h"
#include "service.h"

#define SNAT_SLOTS_PER_BUCKET 4
/* From the start of a sweep: ticks until the oldest entry that it left can wrap. Its age was a time-out at most. */
#define AGES_RIGHT (0x10000 - 2048 - CFG(timeout_longest))

/* Removes the backend from a flow whose frontend it has left while others keep it (lb_former_backend), and counts it there. A
 * connection stays as long as its backend lives: if the backend is gone, and others keep it for their flows, its entry there has
 * FORMER_BACKEND_OF_ALL. */
AI bool sweep_former_backend(const struct ct_entry *e, u64 service)
{
	u64 key = (u64)(u32)service << FORMER_BACKEND_SHIFT | value_backend(e->value);
	u32 *taken = map_lookup(MAPFD(lb_former_backend), &key);
	u64 of_all;

	if (!taken)
		return false;
	of_all = *taken & FORMER_BACKEND_OF_ALL;
	if (!of_all && !ct_entry_may_move(e))
		return false;
	if (ct_entry_end(e, of_all))
		__sync_fetch_and_add(taken, 1);
	return true;
}

/* Counts a live flow of a Service with rules, for the agent to compare (flow_count.h). */
AI void sweep_rules(u64 service, u64 value)
{
	u64 number = rules_number(service);

	if (LIKELY(!number) || !value_is_live(value))
		return;
	__sync_fetch_and_add((u32 *)MAPVAL(lb_swept) + (number & (RULES - 1)), 1);
	__sync_fetch_and_add((u32 *)((u8 *)MAPVAL(lb_swept) + RULES * 4 + backend_counted(value_backend(value)) * 4), 1);
}

/* Counts the flow of an entry, or frees the entry. Returns the number of live flows. A flow that lost its SNAT port counts for no
 * backend. `half`: added to a backend id in this half of the counts. `former` is loaded where it is compared: a value that was compared
 * before is known, and the verifier would follow the rest of the loop once for each. */
AI u64 sweep_flow(u64 *at, const struct ct_sweep *rules, u64 half, volatile u64 *former)
{
	struct ct_entry e;
	u64 backend, service;

	if (!ct_entry_read(at, &e))
		return 0;
	if (ct_entry_is_over(&e, rules)) {
		ct_entry_expire(&e, rules);
		return 0;
	}
	ct_entry_seen(&e, &service);
	if (UNLIKELY(*former & 2)) /* a Service has rules */
		sweep_rules(service, e.value);
	if (UNLIKELY(service_is_gone(service))) {
		ct_entry_end(&e, 0);
		return 1;
	}
	if (UNLIKELY(*former & 1) && sweep_former_backend(&e, service))
		return 1;
	if (value_is_opening(e.value) && !value_is_served(e.value, PATH_META(path_of(value_backend(e.value)))))
		return 1;
	backend = (value_backend(e.value) & CFG(path_mask)) + half;
	__sync_fetch_and_add((u32 *)((u8 *)MAPVAL(lb_live) + backend * 4), 1);
	if (value_is_closing(e.value))
		__sync_fetch_and_add((u32 *)((u8 *)MAPVAL(lb_closing) + backend * 4), 1);
	return 1;
}

AI int sweep_main(lb_ctx *ctx)
{
	struct lb_sweep *run = (struct lb_sweep *)CTX_DATA(ctx);
	volatile u64 *count = &run->count; /* loaded for each bucket: the verifier follows the loop once for each known count */
	u64 tick = whole_ticks(), first, half, n, live = 0;
	struct ct_sweep rules = {tick, TIMEOUTS_EST, TIMEOUTS_OTHER, (u64 *)counters()};

	if ((u8 *)(run + 1) > CTX_END(ctx))
		return 0;
	first = run->first;
	half = -(run->half & 1);
	OPAQUE(half); /* no branch, for the same reason, and no product, whose bounds Linux 6.1 forgets */
	half &= CFG(path_mask) + 1;
	if (!run->trusted_until)
		run->trusted_until = tick + AGES_RIGHT;
	NO_UNROLL
	for (n = 0; n < SWEEP_STEP; n++) {
		u64 *bucket = ct_bucket_at(first + n);

		if (n >= *count)
			break;
		NO_UNROLL
		for (u64 w = 0; w < SNAT_SLOTS_PER_BUCKET; w++)
			snat_expire((first + n) * SNAT_SLOTS_PER_BUCKET + w, tick & 0xffff);
		NO_UNROLL
		for (u64 w = 0; w < FLOW_WAYS; w++)
			live += sweep_flow(ct_entry_at(bucket, w), &rules, half, &run->former);
	}
	run->first = first + n;
	*count -= n;
	run->live += live;
	return run->live;
}
