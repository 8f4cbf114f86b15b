/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program at CALL_SNAT_RECLAIM: a new flow found no free SNAT port where it looked. It checks further ports,
 * and if all of those are held, too, it takes one from a flow that may lose it: a flow that was never established (a flood's SYN,
 * ACK or datagram), a closing one, or a UDP flow with a short conversation. The lease marks likely candidates; the flow's entry
 * confirms the state and how long the client has been silent. An established flow loses nothing.
 *
 * If no port of a source address is available, the flow uses the next one of this node (--snat-address), and is dropped after the
 * last one. So the ports of a flood are reclaimed before it can spread over all addresses.
 */
#pragma once
#include "flow_create.h"

#define RECLAIM_RUN 8    /* slots in one or two cache lines */
#define RECLAIM_FLOWS 6  /* maximum of checked entries */
#define RECLAIM_EXTRA_SNAT_FLOWS 2 /* the same for each extra SNAT address: a chain of tail calls has 33 links */
#define RECLAIM_SILENT 3 /* ticks that the client must have been silent: at least two seconds, so that handshakes are safe */
#define RECLAIM_LASTED 16 /* the same for a long UDP conversation; only if there is no other flow */
#define RECLAIM_NO_ENTRY 2 /* minimum age (units of 8 ticks) of a first lease whose flow has no entry */

/* May the flow lose its port? */
AI bool reclaim_may(const struct ct_flow *f, u64 l4, u64 now)
{
	u64 silent = ct_flow_age(f, now);

	if (silent > 0x7fff) /* seen by another CPU in the next tick */
		return false;
	if (value_keeps_port(f->value, l4))
		return l4 == L4_UDP && silent >= RECLAIM_LASTED;
	return silent >= RECLAIM_SILENT;
}

/* Does the flow with this value word hold the slot at `index`? */
AI bool reclaim_holds(u64 value, u16 frontend_port, u64 index)
{
	return value_is_snat(value) && !((snat_index_of_value(value, frontend_port) - index) & CFG_SNAT_MASK);
}

/* Makes the flow that holds the slot at `index` release it, so that it selects a backend again with its next packet. Returns false
 * if the flow keeps it. `frontend_port`: that of the new flow; a holder behind a range of ports that has another one is not found, and
 * keeps the slot until its lease is over. */
AI bool reclaim_from_flow(const struct snat_view *view, u16 frontend_port, u64 index, u64 now)
{
	u64 backend = snat_view_backend(view), l4 = path_l4(PATH_META(path_of(backend))), hash;
	struct ct_flow f = {};
	struct ct_key key;
	lb_addr vip;
	u16 vip_port;

	if (!view_frontend(view, frontend_port, &vip, &vip_port))
		return true;
	hash = ct_key_make(&key, &view->client, view->client_port, &vip, vip_port, l4_number(l4));
	if (!ct_find_slow(hash, &key, now, &f) || value_backend(f.value) != backend || !reclaim_holds(f.value, vip_port, index))
		return META_PORT(PATH_META(path_of(backend))) && snat_view_age(view, now) >= snat_back(CFG(timeout_new)) + RECLAIM_NO_ENTRY;
	RACE_POINT(RECLAIM_FLOW);
	if (!reclaim_may(&f, l4, now) || !ct_flow_set(&f, value_without_snat(f.value)))
		return false;
	if (LIKELY(!f.spilled))
		flow_turned(ct_flow_service(&f), f.value, value_without_snat(f.value));
	return true;
}

/* Frees the slot at `index`. */
AI bool reclaim_slot(u64 index, u16 frontend_port, u64 now)
{
	struct snat_view view;

	if (!snat_slot_read(snat_slot_at(index), &view) || !reclaim_from_flow(&view, frontend_port, index, now))
		return false;
	RACE_POINT(RECLAIM_SLOT);
	return snat_view_free(&view);
}

#define CANDIDATE_FREE_SHIFT 30
#define CANDIDATE_FREE (1ULL << CANDIDATE_FREE_SHIFT)

/* Free, or age of the lease (units of 8 ticks) << 16, | port ^ salt; 0 while a live flow of the old slots needs the slot during a
 * move: the new flow could not take it. The salt, 16 bits of each flow's own, orders ports of one age differently for each: else
 * the highest ones would be taken all the time, and the others grow old. No branches, as in ct_score(). */
AI u64 reclaim_candidate(u64 bh, u64 port, u64 salt, u64 now)
{
	u64 *s = snat_slot_of(bh, HTONS(port)), age = snat_slot_lease_age(s, now);
	u64 free = SIGN(snat_slot_holder(s) - 1), candidate;

	candidate = free << CANDIDATE_FREE_SHIFT | (age << 16) * (free ^ 1) | (port ^ salt);
	if (MIGRATING_SNAT) {
		u64 awaited = snat_awaited_by_any((bh + port) & CFG_SNAT_MASK, now);

		OPAQUE(awaited);
		return candidate & (awaited - 1);
	}
	return candidate;
}

/* Returns the best candidate of a run that is below `limit`, 0 if there is none. `at`: offset of its first port in their range. */
AI u64 reclaim_best_of_run(u64 at, u64 bh, u64 salt, u64 limit, u64 now)
{
	u64 first = CFG(snat_port_min), range = CFG(snat_port_max) - first + 1, best = 0;

	NO_UNROLL
	for (u64 n = 0; n < RECLAIM_RUN; n++) {
		u64 c = reclaim_candidate(bh, first + at, salt, now);

		best = max64(best, c * SIGN(c - limit));
		at = (at + 1) * SIGN(at + 1 - range);
	}
	return best;
}

/* Returns the best candidate of all runs that is below `limit`. After the first time only those runs are searched whose best
 * candidate was checked. */
AI u64 reclaim_best(struct lb_scratch *s, u64 bh, u64 salt, u64 limit, u64 now)
{
	u64 range = CFG(snat_port_max) - CFG(snat_port_min) + 1, hash = snat_other(s->hash), best = 0;

	NO_UNROLL
	for (u64 run = 0; run < RECLAIM_RUNS; run++) {
		if (!s->reclaim_flows || s->reclaim_best[run] >= limit)
			s->reclaim_best[run] = reclaim_best_of_run(snat_first(hash, range), bh, salt, limit, now);
		best = max64(best, s->reclaim_best[run]);
		hash = snat_other(hash);
	}
	return best;
}

/* Returns the age of a lease (units of 8 ticks) below which no flow releases its port: no short lease is younger, whatever its
 * flow's protocol (backends share slots). `l4`: of the new flow; only for UDP, and only with the `last` source address, long
 * conversations are candidates, too. */
AI u64 reclaim_oldest_kept(u64 l4, bool last)
{
	u64 longest = CFG(timeout_new), closing = CFG(timeout_closing), udp = CFG(timeout_udp);

	if (longest < closing)
		longest = closing;
	if (longest < udp)
		longest = udp;
	return l4 == L4_UDP && last ? 1 : snat_back(longest);
}

/* No port of this source address is available: the flow uses the next address, or is dropped. */
AI int reclaim_next_source(lb_ctx *ctx, struct lb_scratch *s, u64 next)
{
	if (EXTRA_SNAT_SOURCES && next) {
		s->backend = next;
		s->backend_gen = META_GEN(PATH_META(path_of(next)));
		s->snat_port = 0;
		lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	}
	return flow_create_without_port(ctx, s);
}

/* Returns how many flows are checked for a port of the source address of the record `backend`. */
AI u64 reclaim_flows(u64 backend)
{
	return EXTRA_SNAT_SOURCES && META_EXTRA_SNAT(PATH_META(path_of(backend))) ? RECLAIM_EXTRA_SNAT_FLOWS : RECLAIM_FLOWS;
}

/* Checks one candidate per run; calls itself for the next one. */
AI int snat_reclaim_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	u64 now = now_ticks(), best, bh, limit, salt, port, next;

	if (!s)
		return LB_DROP;
	limit = s->reclaim_flows ? s->reclaim_limit : CANDIDATE_FREE << 1;
	next = path_next_source(s->backend);
	if (EXTRA_SNAT_SOURCES && s->reclaim_flows == RECLAIM_IN_VAIN)
		return reclaim_next_source(ctx, s, next);
	bh = backend_hash(s->backend, s->pk.dport);
	salt = s->hash & 0xffff;
	best = reclaim_best(s, bh, salt, limit, now);
	port = (best & 0xffff) ^ salt;
	if (best >> 16 < reclaim_oldest_kept(l4_of(s->pk.proto), !next))
		return reclaim_next_source(ctx, s, next);
	if (best < CANDIDATE_FREE) {
		if (!reclaim_slot((bh + port) & CFG_SNAT_MASK, s->pk.dport, now)) {
			s->reclaim_limit = best;
			if (++s->reclaim_flows < reclaim_flows(s->backend))
				lb_call(ctx, FAMILY_CALL(CALL_SNAT_RECLAIM));
			return reclaim_next_source(ctx, s, next);
		}
		count(EVENT_SNAT_RECLAIMED, CTX_LEN(ctx));
	}
	s->snat_port = port;
	lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
