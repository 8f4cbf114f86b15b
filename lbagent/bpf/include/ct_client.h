/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what the flow table knows of a client by itself: all flows of one client address, port and protocol lie in the
 * same two buckets, whatever their frontend. So a local backend's reply finds its flow, and two flows whose replies could not
 * be told apart are seen before the second one is made.
 */
#pragma once
#include "ct.h"

/* Finds the flow of a local backend's reply: its client is the packet's destination, its backend the source. */
AI bool ct_find_reply(u64 *bucket, const struct ct_key *key, const struct lb_pkt *pk, struct ct_flow *f, lb_addr *vip, u16 *vip_port)
{
	NO_UNROLL
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		u64 *e = CT_WAY(bucket, w), meta;
		lb_path *path;
		lb_addr from;

		if (!ct_entry_match_client(e, key, &f->value, vip, vip_port) || V_SNAT(f->value))
			continue;
		path = path_of(V_BACKEND(f->value));
		meta = PATH_META(path);
		path_addr(path, &from);
		if (addr_eq(&from, &pk->saddr) && META_PORT(meta) == pk->sport && META_GEN(meta) == V_BACKEND_GEN(f->value)) {
			f->value_at = e + E_VALUE;
			f->seen_at = e + E_SEEN;
			return true;
		}
	}
	return false;
}

/* Has this client a flow without SNAT to this backend through another frontend? No branches, as in ct_score(). */
AI u64 ct_clash_in(u64 *bucket, const struct ct_key *key, u64 backend)
{
	u64 clash = 0;

#pragma unroll
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		u64 *e = CT_WAY(bucket, w), v = RD64(e + E_VALUE);
#if LB_FAMILY == 4
		u64 differ = (RD64(e) ^ key->k0) >> 14, own = (RD64(e + 1) ^ key->k1) >> 14;
#else
		u64 differ = ((RD64(e) ^ key->owner) & OWNER_CLIENT) | (RD64(e + 1) ^ key->client.w[0]) | (RD64(e + 2) ^ key->client.w[1]);
		u64 own = ((RD64(e) ^ key->owner) >> 32 & 0xffff) | (RD64(e + 3) ^ key->vip.w[0]) | (RD64(e + 4) ^ key->vip.w[1]);

		own = own >> 1 | (own & 1);
#endif
		differ |= (V_BACKEND(v) ^ backend) | V_SNAT(v);
		differ = (differ >> 1 | (differ & 1)) - 1; /* bit 63 only if nothing differed */
		own -= 1;
		OPAQUE(differ);
		OPAQUE(own);
		clash |= (differ & ~own) >> 63;
	}
	return clash;
}

/* Its replies and those of the flow `key` to this backend could not be told apart. */
AI u64 ct_clash(u64 hash, const struct ct_key *key, u64 backend, u64 now)
{
	u64 *b = ct_bucket(hash), clash = ct_clash_in(b, key, backend);

	if (UNLIKELY(stamp_fresh(CT_STAMPS(b)[0], now)))
		clash |= ct_clash_in(ct_bucket(hash >> 32), key, backend);
	if (MIGRATING_FLOWS)
		clash |= ct_clash_in(ct_old_bucket(hash), key, backend) | ct_clash_in(ct_old_bucket(hash >> 32), key, backend);
	return clash;
}
