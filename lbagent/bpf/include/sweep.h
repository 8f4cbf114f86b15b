/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the sweeper: the agent runs it by BPF_PROG_TEST_RUN over the flow table. What has expired is freed together
 * with its SNAT slot, live flows are counted per backend into one half of lb_live.
 *
 * The run's data is struct lb_sweep. One run does SWEEP_STEP buckets and moves `first` and `count` on, so that the kernel's
 * `repeat` does the rest; it returns (and leaves in `live`) the live flows met since `live` was 0.
 */
#pragma once
#include "ct_insert.h"

#define SNAT_SLOTS_PER_BUCKET 4

/* Frees an entry that nobody has used for its time-out. Between the question and the claim a packet may come: asked again. */
AI void sweep_expire(u64 *e, u64 owner, u64 now, u64 limit)
{
	u64 gen = owner & GEN_MASK;

	if (CAS(e, owner, OWNER_BUSY | gen) != owner)
		return;
	if (((now - RD16(e + E_SEEN)) & 0xffff) <= limit) {
		WR64(e, owner);
		return;
	}
	ct_evict(e, owner);
	MB();
	WR64(e, gen);
}

AI u64 sweep_flow(u64 *e, u64 now, u64 half)
{
	u64 owner = RD64(e), value = RD64(e + E_VALUE), limit, backend;

	if (!(owner >> 16))
		return 0;
	limit = ct_timeout(V_STATE(value), OWNER_IS_UDP(owner));
	if (((now - RD16(e + E_SEEN)) & 0xffff) > limit) {
		sweep_expire(e, owner, now, limit);
		return 0;
	}
	backend = (V_BACKEND(value) & CFG(path_mask)) + (half ? CFG(path_mask) + 1 : 0); /* no product: Linux 6.1 forgets its bounds */
	__sync_fetch_and_add((u32 *)((u8 *)MAPVAL(lb_live) + backend * 4), 1);
	return 1;
}

/* A slot whose lease is over: its flow spilled, or was never stored. */
AI void sweep_snat_slot(u64 index, u64 now)
{
	u64 *s = (u64 *)(FAMILY_VAL(snat) + (index & CFG_SNAT_MASK) * SNAT_SLOT_BYTES), s0 = RD64(s);

	if (s0 >> 16 && snat_slot_stale(RD64(s + SNAT_SLOT_META), now))
		CAS(s, s0, s0 & SNAT_SLOT_GEN);
}

AI int sweep_main(lb_ctx *ctx)
{
	struct lb_sweep *run = (struct lb_sweep *)CTX_DATA(ctx);
	u64 now = now_ticks(), first, count, half, live = 0;

	if ((u8 *)(run + 1) > CTX_END(ctx))
		return 0;
	first = run->first;
	count = run->count < SWEEP_STEP ? run->count : SWEEP_STEP;
	half = run->half & 1;
	NO_UNROLL
	for (u64 n = 0; n < SWEEP_STEP; n++) {
		u64 *bucket = ct_bucket((first + n) * FLOW_WAYS);

		if (n >= count)
			break;
		NO_UNROLL
		for (u64 w = 0; w < FLOW_WAYS; w++) {
			live += sweep_flow(CT_WAY(bucket, w), now, half);
			sweep_snat_slot((first + n) * SNAT_SLOTS_PER_BUCKET + w, now);
		}
	}
	run->first = first + count;
	run->count -= count;
	run->live += live;
	return run->live;
}
