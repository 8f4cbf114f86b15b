/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program at CALL_SNAT_RECLAIM: a new flow found no free SNAT port where it looked. It looks at others, and where all
 * of those are held as well, the oldest one whose flow never proved to live (a flood's SYN, a datagram without an answer) is
 * taken from it. An established flow loses nothing.
 */
#pragma once
#include "flow_create.h"

/* Age of a slot, in units of 8 ticks, beyond which it may be taken: older than that of any established flow alive (renewed every
 * 256 ticks), and a first lease (which starts old) of 8 to 16 ticks, so that handshakes under way are left in peace. */
#define RECLAIM_ESTABLISHED (SNAT_SLOT_LIFE - 64 + 34)
#define RECLAIM_FIRST (SNAT_SLOT_LIFE - CFG(timeout_new) / 8 - 2 + 1)
#define RECLAIM_AGE (RECLAIM_FIRST > RECLAIM_ESTABLISHED ? RECLAIM_FIRST : RECLAIM_ESTABLISHED)

/* Does the flow with this value word hold the slot at `index`? */
AI bool reclaim_holds(u64 value, u64 index)
{
	lb_path *path = path_of(V_BACKEND(value));

	return V_SNAT(value) && ((path_hash(path, PATH_META(path)) + NTOHS(V_SNAT(value)) - index) & CFG_SNAT_MASK) == 0;
}

/* Makes the flow that holds the slot at `index` forget it: its backend's generation fits no more, so that it chooses again if it
 * ever comes back. Returns false if the flow is established after all. */
AI bool reclaim_from_flow(const lb_addr *client, u16 client_port, u64 meta, u64 index, u64 now)
{
	struct ct_flow f = {};
	struct ct_key key;
	lb_addr vip;
	u16 vip_port;
	u64 hash, next;

	if (!service_frontend(SNAT_SLOT_SERVICE(meta), &vip, &vip_port))
		return true;
	hash = ct_key_make(&key, client, client_port, &vip, vip_port, path_proto(PATH_META(path_of(SNAT_SLOT_BACKEND(meta)))));
	if (!ct_find(hash, &key, now, &f) && !ct_find_spilled(&key, now, &f))
		return true;
	if (V_BACKEND(f.value) != SNAT_SLOT_BACKEND(meta) || !reclaim_holds(f.value, index))
		return true;
	if (V_STATE(f.value) == CT_EST)
		return false;
	next = (f.value & ~(0xffffULL << 20 | V_STATE_MASK)) | CT_CLOSING << 16;
	return CAS(f.value_at, f.value, next ^ 0x80ULL << 36) == f.value;
}

/* Frees the slot at `index`. */
AI bool reclaim_slot(u64 index, u64 now)
{
	u64 *s = snat_slot_of(index, 0), s0 = RD64(s), meta = RD64(s + SNAT_SLOT_META);
	u16 client_port;
	lb_addr client;

#if LB_FAMILY == 4
	client.w[0] = s0 >> 32;
	client_port = s0 >> 16;
#else
	client.w[0] = RD64(s + 1);
	client.w[1] = RD64(s + 2);
	client_port = s0 >> 48;
#endif
	if (!(s0 >> 16) || (s0 ^ meta) & 15 || !reclaim_from_flow(&client, client_port, meta, index, now))
		return false;
	return CAS(s, s0, s0 & SNAT_SLOT_GEN) == s0;
}

#define CANDIDATE_FREE (1ULL << 40)

/* Free, or age (units of 8 ticks) << 16, | port; 0 for no port. No branches, as in ct_score(). */
AI u64 reclaim_candidate(u64 bh, u64 port, u64 now)
{
	u64 *s = snat_slot_of(bh, HTONS(port)), age = (SNAT_SLOT_UNITS(now) - SNAT_SLOT_SEEN(RD64(s + SNAT_SLOT_META))) & 0xfff;
	u64 free = (RD64(s) >> 16) - 1, none = port - 1;

	OPAQUE(free);
	OPAQUE(none);
	free = (u64)((s64)free >> 63);
	none = (u64)((s64)none >> 63);
	return ((CANDIDATE_FREE & free) | (age << 16 & ~free) | port) & ~none;
}

AI int snat_reclaim_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	u64 now = now_ticks(), best = 0, bh, hash;
	lb_path *path;

	if (!s)
		return LB_DROP;
	path = path_of(s->backend);
	bh = path_hash(path, PATH_META(path));
	hash = snat_other(s->hash);
	NO_UNROLL
	for (u64 n = 0; n < SNAT_PROBES; n++)
		best = max64(best, reclaim_candidate(bh, snat_probe(hash, n), now));
	if (best < CANDIDATE_FREE && best >> 16 > RECLAIM_AGE)
		reclaim_slot((bh + (best & 0xffff)) & CFG_SNAT_MASK, now);
	s->snat = SNAT_OTHER;
	lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
