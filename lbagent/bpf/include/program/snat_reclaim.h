/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program at CALL_SNAT_RECLAIM: a new flow found no free SNAT port where it looked. It looks at others,
 * and where all of those are held as well, the oldest one whose flow never proved to live (a flood's SYN, a datagram without an answer) is
 * taken from it. An established flow loses nothing.
 */
#pragma once
#include "flow_create.h"

/* Age of a slot, in units of 8 ticks, beyond which it may be taken: older than that of any established flow alive (renewed every
 * 256 ticks), and a first lease (which starts old) of 8 to 16 ticks, so that handshakes under way are left in peace. */
#define RECLAIM_ESTABLISHED (SNAT_LIFE - 64 + 34)
#define RECLAIM_FIRST (SNAT_LIFE - CFG(timeout_new) / 8 - 2 + 1)
#define RECLAIM_AGE (RECLAIM_FIRST > RECLAIM_ESTABLISHED ? RECLAIM_FIRST : RECLAIM_ESTABLISHED)

/* Does the flow with this value word hold the slot at `index`? */
AI bool reclaim_holds(u64 value, u64 index)
{
	return value_is_snat(value) && !((snat_index_of_value(value) - index) & CFG_SNAT_MASK);
}

/* Makes the flow that holds the slot at `index` forget it, so that it chooses a backend again if it ever comes back. Returns false
 * if the flow is established after all. */
AI bool reclaim_from_flow(const struct snat_view *view, u64 index, u64 now)
{
	u64 backend = snat_view_backend(view), proto = l4_number(path_l4(PATH_META(path_of(backend)))), hash;
	struct ct_flow f = {};
	struct ct_key key;
	lb_addr vip;
	u16 vip_port;

	if (!service_frontend(snat_view_service(view), &vip, &vip_port))
		return true;
	hash = ct_key_make(&key, &view->client, view->client_port, &vip, vip_port, proto);
	if (!ct_find(hash, &key, now, &f) && !ct_find_spilled(&key, now, &f))
		return true;
	if (value_backend(f.value) != backend || !reclaim_holds(f.value, index))
		return true;
	RACE_POINT(RECLAIM_FLOW);
	return value_state(f.value) != CT_EST && ct_flow_set(&f, value_without_snat(f.value));
}

/* Frees the slot at `index`. */
AI bool reclaim_slot(u64 index, u64 now)
{
	struct snat_view view;

	if (!snat_slot_read(snat_slot_at(index), &view) || !reclaim_from_flow(&view, index, now))
		return false;
	RACE_POINT(RECLAIM_SLOT);
	return snat_slot_free(view.slot, view.word);
}

#define CANDIDATE_FREE (1ULL << 40)

/* Free, or age (units of 8 ticks) << 16, | port; 0 for no port. No branches, as in ct_score(). */
AI u64 reclaim_candidate(u64 bh, u64 port, u64 now)
{
	u64 *s = snat_slot_of(bh, HTONS(port)), age = snat_slot_lease_age(s, now);
	u64 free = snat_slot_holder(s) - 1, none = port - 1;

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

	if (!s)
		return LB_DROP;
	bh = backend_hash(s->backend);
	hash = snat_other(s->hash);
	NO_UNROLL
	for (u64 n = 0; n < SNAT_PROBES; n++)
		best = max64(best, reclaim_candidate(bh, snat_probe(hash, n), now));
	if (best < CANDIDATE_FREE && best >> 16 > RECLAIM_AGE)
		reclaim_slot((bh + (best & 0xffff)) & CFG_SNAT_MASK, now);
	s->snat_ports = SNAT_PORTS_OTHER;
	lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
