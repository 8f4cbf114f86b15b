/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains finding a flow: in its two buckets, in the spill map, and in the table that is being left.
 */
#pragma once
#include "ct.h"

/* Does this primary bucket have entries in second buckets? */
AI bool ct_second_in_use(u64 *bucket, u64 now)
{
	return stamp_fresh(CT_STAMPS(bucket)[0], now);
}

/* Begins a look-up that does not insert. */
AI void ct_flow_in(struct ct_flow *f, u64 hash)
{
	f->bucket = ct_bucket(hash);
	f->second = false;
}

/* Returns the way of the bucket that holds the flow, FLOW_WAYS if none does. */
AI u64 ct_find_way(u64 *bucket, const struct ct_key *key, u64 *value)
{
#pragma unroll
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		if (ct_entry_match(CT_WAY(bucket, w), key, value))
			return w;
	}
	return FLOW_WAYS;
}

/* Looks in one bucket, that of `hash` in a table. */
AI bool ct_find_in(u64 *bucket, u64 hash, const struct ct_key *key, struct ct_flow *f)
{
	u64 way = ct_find_way(bucket, key, &f->value);

	if (way == FLOW_WAYS)
		return false;
	FORGET(way, hash);
	ct_flow_at(f, ct_entry_at(bucket, way & (FLOW_WAYS - 1)));
	return true;
}

/* Looks in one bucket for the client's plain frame at `data`. */
AI bool ct_find_frame(u64 *bucket, const struct ct_key *key, const u8 *data, struct ct_flow *f)
{
#pragma unroll
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		u64 *e = CT_WAY(bucket, w);

		if (ct_entry_match_frame(e, key, data, &f->value)) {
			f->seen_at = e + E_SEEN;
			return true;
		}
	}
	return false;
}

/* Looks in the table only. The spill map is for the slow path. */
AI bool ct_find(u64 hash, const struct ct_key *key, u64 now, struct ct_flow *f)
{
	u64 way, second = 0;

	f->bucket = ct_bucket(hash);
	f->version = RD64(CT_VERSION(f->bucket));
	f->second = f->spilled = f->unswept = false;
	MB();
	way = ct_find_way(f->bucket, key, &f->value);
	if (way == FLOW_WAYS) {
		if (!ct_second_in_use(f->bucket, now))
			return false;
		f->second = true;
		way = ct_find_way(ct_bucket(hash >> 32), key, &f->value);
		if (way == FLOW_WAYS)
			return false;
		second = 1;
	}
	FORGET(way, hash);
	FORGET(second, hash);
	f->second = second & 1;
	ct_flow_at(f, ct_entry_at(ct_bucket(hash >> (second << 5 & 32)), way & (FLOW_WAYS - 1)));
	return true;
}

AI bool ct_find_spilled(const struct ct_key *key, u64 now, struct ct_flow *f)
{
	struct spill_value *v;
	struct spill_key k = {*key};

	if (LIKELY(!MIGRATING_FLOWS && !stamp_fresh(CT_STAMPS(f->bucket)[1], now)))
		return false;
	v = map_lookup(FAMILY_FD(spill), &k);
	if (!v)
		return false;
	f->value_at = &v->value;
	f->seen_at = &v->seen;
	f->value = v->value;
	f->second = false;
	f->spilled = f->unswept = true;
	return true;
}

/* Finds a flow off the fast path: wherever it is. One that is being moved is in the new table before it leaves the old one. */
AI bool ct_find_slow(u64 hash, const struct ct_key *key, u64 now, struct ct_flow *f)
{
	if (ct_find(hash, key, now, f) || ct_find_spilled(key, now, f))
		return true;
	if (!MIGRATING_FLOWS)
		return false;
	f->second = false;
	f->unswept = true;
	return ct_find_in(ct_old_bucket(hash), hash, key, f) || ct_find_in(ct_old_bucket(hash >> 32), hash, key, f) || ct_find(hash, key, now, f);
}
