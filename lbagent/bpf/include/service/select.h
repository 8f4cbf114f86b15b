/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the candidates for a new flow's backend, also for socket programs: the client's affinity, else Maglev or a
 * seeded hash of the flow ("random": each client port selects independently, and a flow without state selects the same backend
 * again). Backend id 0: none.
 */
#pragma once
#include "csum.h"
#include "path.h"
#include "service.h"

#define NS_PER_S 1000000000ULL /* ns */
#define SELECT_TRIES 4 /* candidates that are checked */
#define GOLDEN 0x9E3779B97F4A7C15ULL

AI u64 svc_slot_backend(lb_key *key, u64 slot)
{
	struct lb_service *row;

	key_set(key, KEY_AT(backend_slot), 0xffff, slot);
	row = map_lookup(FAMILY_FD(service), key);
	return row ? row->target : 0;
}

typedef WORDS_OF(struct FAMILY(affinity_key)) lb_affinity_key;

AI void affinity_key(const struct lb_tuple5 *t, const struct lb_service *svc, lb_affinity_key *key)
{
	CLEAR(key);
	addr_store(&key->is.client, &t->client);
	key->is.netns_cookie = t->from_netns;
	key->is.rev_nat_index = svc->rev_nat_index;
}

/* Returns the client's previous backend if its affinity has not expired and the service still has that backend. */
AI u64 affinity_lookup(const struct lb_tuple5 *t, const struct lb_service *svc)
{
	lb_affinity_key key;
	struct lb_affinity_value *v;
	WORDS_OF(struct lb_affinity_match) match;

	if (LIKELY(!(svc->flags & SVC_AFFINITY)))
		return 0;
	affinity_key(t, svc, &key);
	v = map_lookup(FAMILY_FD(affinity), &key);
	if (!v || coarse_ns() - v->last_used >= SVC_AFFINITY_S(svc) * NS_PER_S)
		return 0;
	CLEAR(&match);
	match.is.backend_id = v->backend_id;
	match.is.rev_nat_index = svc->rev_nat_index;
	return map_lookup(MAPFD(lb_affinity_match), &match) ? match.is.backend_id : 0;
}

AI void affinity_update(const struct lb_tuple5 *t, const struct lb_service *svc, u64 backend)
{
	lb_affinity_key key;
	struct lb_affinity_value v;

	if (LIKELY(!(svc->flags & SVC_AFFINITY)))
		return;
	affinity_key(t, svc, &key);
	CLEAR(&v);
	v.last_used = coarse_ns();
	v.backend_id = backend;
	map_update(FAMILY_FD(affinity), &key, &v, 0);
}

/* Entry of the service's Maglev table. The hash has no seed: every node must select the same backend. With affinity only the
 * client's address counts. Returns 0 without a table. */
AI u64 maglev_backend(const struct lb_tuple5 *t, const struct lb_service *svc)
{
	u64 id = NTOHS(svc->rev_nat_index), zero = 0;
	u64 sum = addr_sum(&t->client) * GOLDEN, ports = t->proto | (u64)t->frontend_port << 16, size = CFG(maglev_size), at;
	void *inner = map_lookup(FAMILY_FD(maglev), &id);
	u32 *table;

	if (!inner)
		return 0;
	table = map_lookup(inner, &zero);
	if (!table)
		return 0;
	if (!(svc->flags & SVC_AFFINITY))
		ports |= (u64)t->client_port << 32;
	sum = (sum ^ sum >> 32 ^ ports) * GOLDEN;
	sum = (sum ^ sum >> 29) * 0x9FB21C651E98DF25ULL;
	at = ((sum >> 32) * size) >> 32;
	if (at >= size)
		return 0;
	return table[at];
}

/* Uniform over 0..count-1, the same for the same flow. */
AI u64 select_random(const struct lb_tuple5 *t, u64 hash, u64 count)
{
	u64 x = (hash ^ (u64)t->frontend_port << 48 ^ addr_sum(&t->frontend)) * GOLDEN;

	x ^= x >> 32;
	x *= (CFG(seed1) | 1);
	return ((x >> 32) * count) >> 32;
}

/* The backend that the client's affinity or the service's Maglev table names; 0: none. */
AI u64 select_preferred(const struct lb_tuple5 *t, const struct lb_service *svc)
{
	u64 id = affinity_lookup(t, svc);

	if (svc->flags & SVC_AFFINITY)
		TRACE(AFFINITY, id, 0);
	if (!id && SVC_ALGORITHM(svc) == ALGORITHM_MAGLEV)
		id = maglev_backend(t, svc);
	return id;
}

/* The backend in the slot that the flow's hash selects, or in the n-th one after it. */
AI u64 select_slot(const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key, u64 hash, u64 n)
{
	u64 count = svc->count, at = select_random(t, hash, count) + n;

	if (at >= count)
		at -= count;
	if (at >= count)
		at = 0;
	return svc_slot_backend(key, at + 1);
}
