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

/* A count that is not below 0. No branch: the verifier would follow the code after it twice. */
AI u64 not_negative(u64 count)
{
	u64 negative = (u64)((s64)count >> 63);

	OPAQUE(negative);
	return count & ~negative;
}

/* Live flows of the Service on this node, 0 or more. */
AI u64 rules_live(const struct lb_rules *rules)
{
	return not_negative(RD64(&rules->base) + RD64(&rules->opened) - RD64(&rules->closed));
}

/* The same of a backend. */
AI u64 backend_live(const struct lb_backend_flows *b)
{
	return not_negative(RD64(&b->live) + (s64)(s32)RD32(&b->base));
}

/* 1 if so many live flows are as many as there may be, else 0. `limit`: 0: there is none. No branch, for the same reason. */
AI u64 reaches(u64 live, u64 limit)
{
	return SIGN(((limit - 1) << 1 >> 1) - live);
}

/* Has the backend as many flows as it may have? */
AI u64 backend_is_full(const struct lb_rules *rules, u64 backend)
{
	return reaches(backend_live(backend_flows(backend)), RD32(&rules->max_per_backend));
}

/* Connections to the Service's L7 proxy: those that the agent has counted, and the SYNs that the proxy got since. 0: no agent counts. */
AI u64 rules_proxied(const struct lb_rules *rules)
{
	u64 age = (whole_ticks() - RD32(&rules->slow_start)) & 0xffff;

	return age <= PROXIED_VALID ? (u32)(RD32(&rules->proxied) + RD32(&rules->admitted)) : 0;
}

/* Has the Service as many flows as it may have? */
AI u64 rules_are_full(const struct lb_rules *rules)
{
	return reaches(rules_live(rules), RD32(&rules->max_flows));
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

/* The hash of the n-th draw for a flow. */
AI u64 draw_hash(u64 hash, u64 n)
{
	return hash ^ n * DRAW_SALT;
}

/* The n-th backend drawn for a flow; 0: none. With weights it is drawn from the table that has each backend as often as its weight
 * requires. */
AI u64 draw(const struct lb_rules *rules, const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key, u64 hash, u64 n)
{
	u64 id = NTOHS(svc->rev_nat_index), zero = 0, at;

	if (UNLIKELY(RD32(&rules->flags) & RULES_WEIGHTED) && SVC_ALGORITHM(svc) == ALGORITHM_LEAST_CONN) {
		void *inner = map_lookup(FAMILY_FD(maglev), &id);
		u32 *table = inner ? map_lookup(inner, &zero) : 0;

		at = select_random(t, draw_hash(hash, n), CFG(maglev_size));
		if (table && at < CFG(maglev_size))
			return table[at];
	}
	return select_slot(t, svc, key, draw_hash(hash, n), 0);
}

/* Flows of a backend for its weight: to be multiplied by those of another one. */
struct load {
	u64 flows, weight;
};

AI void load_of(const struct lb_backend_flows *b, u64 share, struct load *load)
{
	u64 weight = RD16(&b->weight), none = (weight - 1) >> 63;

	OPAQUE(none);
	load->flows = backend_live(b);
	load->weight = (weight + none) * share;
}

/* Does a backend that was added a moment ago, with this share, leave the n-th draw of a flow to others? */
AI bool draw_is_left(const struct lb_tuple5 *t, u64 hash, u64 n, u64 share)
{
	return UNLIKELY(share < FULL_SHARE) && select_random(t, hash ^ (n + 1) * SHARE_SALT, FULL_SHARE) >= share;
}

/* Is a draw from the slots all that the Service needs? If so, the slow path draws. */
AI bool rules_are_simple(const struct lb_rules *rules, const struct lb_service *svc)
{
	return !(svc->flags & SVC_AFFINITY) && SVC_ALGORITHM(svc) != ALGORITHM_MAGLEV && !(RD32(&rules->flags) & RULES_WEIGHTED) &&
	       !RD32(&rules->slow_start);
}

/* A backend that is not full, drawn for the flow: with least-conn the less loaded one of two that differ. 0: none of the draws was
 * possible. `simple`, a constant: rules_are_simple(). */
AI u64 choose_drawn(const struct lb_rules *rules, const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key, u64 hash,
		    const bool simple)
{
	struct load load = {hash, hash}, other;
	u64 best = 0;

	FORGET(best, hash);
	NO_UNROLL
	for (u64 n = 0; n < DRAWS; n++) {
		u64 id = simple ? select_slot(t, svc, key, draw_hash(hash, n), 0) : draw(rules, t, svc, key, hash, n), share = FULL_SHARE;
		struct lb_backend_flows *b = backend_flows(id);

		FORGET(id, hash);
		if (!id || id == best || backend_is_full(rules, id))
			continue;
		if (!simple) {
			share = backend_share(rules, b);
			if (draw_is_left(t, hash, n, share))
				continue;
			FORGET(share, hash);
		}
		if (SVC_ALGORITHM(svc) != ALGORITHM_LEAST_CONN) {
			best = id;
			break;
		}
		load_of(b, share, &other);
		if (best) {
			best = other.flows * load.weight < load.flows * other.weight ? id : best;
			break;
		}
		best = id;
		FORGET(best, hash);
		load = other;
	}
	return best;
}

/* The first of some slots from `from` on whose backend is not full, none of them twice; 0: none. */
AI u64 choose_scanned(const struct lb_rules *rules, const struct lb_service *svc, lb_key *key, u64 from)
{
	u64 count = svc->count, at = from, found = 0, id;

	NO_UNROLL
	for (u64 n = 0; n < RULES_SCAN; n++) {
		OPAQUE(count); /* or the compiler computes the number of steps, and Linux 6.1 does not see the loop's end */
		if (n >= count)
			break;
		id = svc_slot_backend(key, at + 1);
		FORGET(id, key->words[0]);
		if (!(backend_is_full(rules, id) | (id - 1) >> 63)) {
			found = id;
			break;
		}
		at++;
		at *= SIGN(at - count);
	}
	return found;
}
