/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the rules of a Service about its new flows: how many it may have (max-flows, max-flows-per-backend), how many may
 * begin in a second (new-flow-rate), and which of two backends gets one (least-conn, slow-start). Only the master entry of such a
 * Service has SVC_RULES in its target: no other meets this code (program/choose.h).
 */
#pragma once
#include "flow_count.h"
#include "select.h"

#define FULL_SHARE 1024     /* of a backend that is not new */
#define FIRST_SHARE 102     /* of one that was just added: 10 % */
#define DRAWS 6             /* backends that are drawn at random, until two differ */
#define DRAW_SALT 0x9FB21C651E98DF25ULL
#define SHARE_SALT 0xD6E8FEB86659FD93ULL
#define RATE_TRIES 4

/* Loads the record of a Service while its flow is looked up. */
AI void rules_prefetch(u64 service)
{
	RD64(rules_at(rules_number(service)));
}

/* Live flows of the Service on this node, 0 or more. */
AI u64 rules_live(const struct lb_rules *rules)
{
	u64 live = RD64(&rules->base) + RD64(&rules->opened) - RD64(&rules->closed), less = live;

	OPAQUE(less);
	return live & ~(u64)((s64)less >> 63);
}

/* The same of a backend. */
AI u64 backend_live(const struct lb_backend_flows *b)
{
	u64 live = RD64(&b->live) + (s64)(s32)RD32(&b->base), less = live;

	OPAQUE(less);
	return live & ~(u64)((s64)less >> 63);
}

/* Has the backend as many flows as it may have? */
AI bool backend_is_full(const struct lb_rules *rules, u64 backend)
{
	u64 limit = RD32(&rules->max_per_backend);

	return limit && backend_live(backend_flows(backend)) >= limit;
}

/* Has the Service as many flows as it may have? */
AI bool rules_are_full(const struct lb_rules *rules)
{
	u64 limit = RD32(&rules->max_flows);

	return limit && rules_live(rules) >= limit;
}

/* May one more flow begin in this second? `rate_at` is when the bucket was, or will be, full again less a second; a flow takes
 * `rate_interval` of it. Where other CPUs are faster several times in a row, it may. */
AI bool rules_rate_admits(struct lb_rules *rules)
{
	u64 interval = RD64(&rules->rate_interval), now, at, next;

	if (!interval)
		return true;
	now = coarse_ns();
	NO_UNROLL
	for (u64 n = 0; n < RATE_TRIES; n++) {
		at = RD64(&rules->rate_at);
		next = at;
		if ((s64)(next - (now - NS_PER_S)) < 0)
			next = now - NS_PER_S;
		next += interval;
		if ((s64)(next - now) > 0)
			return false;
		if (CAS(&rules->rate_at, at, next) == at)
			break;
	}
	return true;
}

/* The part of its share that a backend gets, of FULL_SHARE. */
AI u64 backend_share(const struct lb_rules *rules, const struct lb_backend_flows *b)
{
	u64 since = RD16(&b->since), takes = RD32(&rules->slow_start), age;

	if (LIKELY(!takes) || !since)
		return FULL_SHARE;
	age = (whole_ticks() - since) & 0xffff;
	if (age >= takes)
		return FULL_SHARE;
	return FIRST_SHARE + (FULL_SHARE - FIRST_SHARE) * age / takes;
}

/* The n-th backend drawn for a flow; 0: none. With weights it is drawn from the table that has each backend as often as its weight
 * requires. */
AI u64 draw(const struct lb_rules *rules, const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key, u64 hash, u64 n)
{
	u64 id = NTOHS(svc->rev_nat_index), zero = 0, at;

	hash ^= n * DRAW_SALT;
	if (UNLIKELY(RD32(&rules->flags) & RULES_WEIGHTED) && SVC_ALGORITHM(svc) == ALGORITHM_LEAST_CONN) {
		void *inner = map_lookup(FAMILY_FD(maglev), &id);
		u32 *table = inner ? map_lookup(inner, &zero) : 0;

		at = select_random(t, hash, CFG(maglev_size));
		if (table && at < CFG(maglev_size))
			return table[at];
	}
	at = select_random(t, hash, svc->count);
	if (at >= svc->count)
		at = 0;
	return svc_slot_backend(key, at + 1);
}

/* Flows of a backend for its weight: to be multiplied by those of another one. */
struct load {
	u64 flows, weight;
};

AI void load_of(const struct lb_rules *rules, const struct lb_backend_flows *b, u64 share, struct load *load)
{
	u64 weight = RD16(&b->weight);

	load->flows = backend_live(b);
	load->weight = (weight | !weight) * share;
}

/* The backend for a flow: the client's, or that of the Maglev table, if it is not full; else a draw, with least-conn the less loaded
 * one of two that differ. 0: none of those was possible. */
AI u64 choose_drawn(const struct lb_rules *rules, const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key, u64 hash)
{
	u64 best = affinity_lookup(t, svc);
	struct load load = {}, other;

	if (svc->flags & SVC_AFFINITY)
		TRACE(AFFINITY, best, 0);
	if (!best && SVC_ALGORITHM(svc) == ALGORITHM_MAGLEV)
		best = maglev_backend(t, svc);
	if (best && !backend_is_full(rules, best))
		return best;
	best = 0;
	FORGET(best, hash);
	NO_UNROLL
	for (u64 n = 0; n < DRAWS; n++) {
		u64 id = draw(rules, t, svc, key, hash, n), share;
		struct lb_backend_flows *b = backend_flows(id);

		if (!id || id == best || backend_is_full(rules, id))
			continue;
		share = backend_share(rules, b);
		if (UNLIKELY(share < FULL_SHARE) && select_random(t, hash ^ (n + 1) * SHARE_SALT, FULL_SHARE) >= share)
			continue;
		if (SVC_ALGORITHM(svc) != ALGORITHM_LEAST_CONN)
			return id;
		load_of(rules, b, share, &other);
		if (best)
			return other.flows * load.weight < load.flows * other.weight ? id : best;
		best = id;
		FORGET(best, hash);
		load = other;
	}
	return best;
}

/* The first of some slots from `from` on whose backend is not full; 0: none. */
AI u64 choose_scanned(const struct lb_rules *rules, const struct lb_service *svc, lb_key *key, u64 from)
{
	u64 count = svc->count, found = 0;

	NO_UNROLL
	for (u64 n = 0; n < RULES_SCAN; n++) {
		u64 at = from + n, id;

		if (at >= count)
			at -= count;
		if (at >= count)
			break;
		id = svc_slot_backend(key, at + 1);
		if (id && !backend_is_full(rules, id))
			return id;
	}
	return found;
}
