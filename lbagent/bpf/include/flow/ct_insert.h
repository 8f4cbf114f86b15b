/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the insertion into the flow table. A victim is chosen by class, then age, then round robin by the bucket's
 * version: free > expired > NEW > MID of 2 ticks. A live established flow is never a victim. The scoring has no branches:
 * with them the verifier's states multiply beyond its limit.
 */
#pragma once
#include "ct_refresh.h"

#define CT_OK 0
#define CT_RETRY 1    /* another CPU inserted first */
#define CT_SPILLED 2
#define CT_NO_STATE 3 /* a SYN found no room: the connection has only its SNAT slot */
#define CT_FULL 4     /* no room anywhere */

/* Score of a way as a victim: class (bit 40 free, 39 expired, 38 NEW, 37 MID), age, tie break, way. 0 = not to be taken. */
#define SCORE_ROOM(s) ((((s) >> 39) + 1) >> 1) /* 1: free or expired */

/* What scoring depends on: TIMEOUTS_EST and TIMEOUTS_OTHER, read once. */
struct ct_rules {
	u64 now, turn, est, other;
};

/* `version`: of the primary bucket. Called where ways are compared: a flow that finds a free one needs none of it. */
AI void ct_rules_read(struct ct_rules *rules, u64 now, u64 version)
{
	rules->now = now;
	rules->turn = version >> (SEEN_BUCKET_SHIFT + 1);
	rules->est = TIMEOUTS_EST;
	rules->other = TIMEOUTS_OTHER;
}

AI u64 ct_score(u64 *e, u64 w, const struct ct_rules *rules)
{
	u64 owner = RD64(e), v = RD64(e + E_VALUE), age = (rules->now - RD16(e + E_SEEN)) & 0xffff, state = V_STATE(v);
	u64 none, over, young, mid, used, free, class, any, mask, limits;

	OPAQUE(state);
	OPAQUE(age);
	limits = ct_timeouts(OWNER_L4(owner), rules->est, rules->other);
	none = OWNER_IS_HELD(owner) - 1;
	OPAQUE(none);
	none >>= 63;
	free = none & ~(owner >> OWNER_BUSY_SHIFT) & 1;
	used = none ^ 1;
	over = (limits >> (state << 4) & 0xffff) - age;
	OPAQUE(over);
	over >>= 63;
	young = state - 1;
	OPAQUE(young);
	young >>= 63;
	mid = 1 - age;
	OPAQUE(mid);
	mid = mid >> 63 & state >> 1 & state & 1;
	class = free << 40 | (over & used) << 39 | (young & used) << 38 | (mid & used) << 37;
	any = 0 - class;
	OPAQUE(any);
	any = (u64)((s64)any >> 63);
	mask = 0 - used;
	OPAQUE(mask);
	return (class | (age << 8 & mask) | ((7 - w & ~mask) | (w + rules->turn & 3 & mask)) << 4 | w) & any;
}

struct ct_best {
	u64 score, room;
};

AI void ct_best_of(u64 *bucket, const struct ct_rules *rules, struct ct_best *best)
{
	best->score = best->room = 0;
#pragma unroll
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		u64 s = ct_score(CT_WAY(bucket, w), w, rules);

		best->room += SCORE_ROOM(s);
		best->score = max64(best->score, s);
		FENCE(best->score); /* keeps the ways apart: the stack has 512 bytes */
	}
}

/* The frequent case: a bucket with two free ways or more. Returns the first one's number, FLOW_WAYS if there are fewer. No branch, and no
 * number that is masked by a sign: the verifier would follow each. */
AI u64 ct_free_way(u64 *bucket)
{
	u64 used[FLOW_WAYS];

#pragma unroll
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		u64 owner = RD64(CT_WAY(bucket, w)), held = 0 - (owner & ~GEN_MASK);

		OPAQUE(held);
		used[w] = (held | owner) >> 63; /* owned, or busy */
		OPAQUE(used[w]);
	}
	if (used[0] + used[1] + used[2] + used[3] > FLOW_WAYS - 2)
		return FLOW_WAYS;
	return used[0] * (1 + used[1] * (1 + used[2]));
}

_Static_assert(FLOW_WAYS == 4, "ct_free_way() has each way");

/* Frees the SNAT slot of the evicted flow. The entry still has its key; its owner word was `owner`. */
AI void ct_evict(u64 *e, u64 owner)
{
	u64 value;
	lb_addr client;

	if (!OWNER_IS_HELD(owner))
		return;
	value = RD64(e + E_VALUE);
	ct_entry_client(e, &client);
	snat_release(value, owner, &client, ct_entry_vip_port(e, owner));
	flow_turned(SEEN_SERVICE(e + E_SEEN), value, 0);
}

/* Takes way `e` over for the flow. Returns false if another CPU took it first. */
AI bool ct_claim(u64 *e, u64 way, const struct ct_key *key, u64 value, u64 service, u64 now, struct ct_flow *f)
{
	u64 owner = RD64(e), gen = (owner + 1) & GEN_MASK;
	struct ct_rules rules;

	if (owner & ~GEN_MASK) {
		ct_rules_read(&rules, now, f->version);
		if (!ct_score(e, way, &rules)) /* it was refreshed, or is busy */
			return false;
	}
	if (CAS(e, owner, OWNER_BUSY | gen) != owner)
		return false;
	ct_evict(e, owner);
	f->value = value | gen;
	f->value_at = e + E_VALUE;
	f->seen_at = e + E_SEEN;
	WR16(f->seen_at, now);
	WR16(&SEEN_SERVICE(f->seen_at), service);
	WR16(&SEEN_NEXTHOP(f->seen_at), 0);
	ct_entry_write_key(e, key, gen);
	WR64(e + E_VALUE, f->value);
	MB();
	WR64(e, KEY_OWNER(key) | gen);
	return true;
}

/* Writes the reply row of a spilled flow, if it needs one. Returns false if there is no room. */
AI bool ct_spill_reply(const struct ct_key *reply, u64 value, u64 service, u64 now)
{
	struct spill_key k = {*reply};
	struct spill_value v = {value, now | service << SEEN_SERVICE_SHIFT};

	return value_forward(value) != FORWARD_LOCAL || !map_update(FAMILY_FD(spill), &k, &v, 0);
}

/* Removes the reply row of a spilled flow's former backend. */
AI void ct_unspill_reply(const struct ct_key *key, u64 value)
{
	lb_path *path = path_of(V_BACKEND(value));
	struct spill_key k;
	lb_addr backend;

	path_addr(path, &backend);
	ct_key_reply(&k.key, key, &backend, meta_port(PATH_META(path), KEY_VIP_PORT(key)));
	map_delete(FAMILY_FD(spill), &k);
}

/* Moves a flow of FORWARD_LOCAL to a SNAT port with its next packet. Until then no reply is the flow's. */
AI void ct_flow_await_snat(const struct ct_flow *f, const struct ct_key *key)
{
	if (ct_flow_set(f, value_awaiting_snat(f->value)) && f->spilled)
		ct_unspill_reply(key, f->value);
}

/* The overflow map, for a flow that finds no way and does not begin with a SYN. A flow of FORWARD_LOCAL gets a second row for its replies. */
AI u64 ct_spill(const struct ct_key *key, const struct ct_key *reply, u64 value, u64 service, u64 now, struct ct_flow *f)
{
	struct spill_key k = {*key};
	struct spill_value v = {value, (now & 0xffff) | service << SEEN_SERVICE_SHIFT};

	if (map_update(FAMILY_FD(spill), &k, &v, 0))
		return CT_FULL;
	if (!ct_spill_reply(reply, value, service, now))
		return CT_FULL;
	WR8(&CT_STAMPS(f->bucket)[1], stamp_now(now));
	return CT_SPILLED;
}

/* Chooses the way to take. Returns its bucket and number; NULL if every flow in both buckets must stay. */
AI u64 *ct_victim(u64 hash, u64 now, struct ct_flow *f, u64 *way)
{
	struct ct_best best, other;
	struct ct_rules rules;

	f->second = false;
	*way = ct_free_way(f->bucket);
	if (LIKELY(*way < FLOW_WAYS))
		return f->bucket;
	ct_rules_read(&rules, now, f->version);
	ct_best_of(f->bucket, &rules, &best);
	if (best.room < 2) { /* nearly full: the emptier of the two */
		ct_best_of(ct_bucket(hash >> 32), &rules, &other);
		if (best.room ? other.room > best.room : other.score > best.score) {
			best.score = other.score;
			f->second = true;
		}
	}
	*way = best.score & (FLOW_WAYS - 1);
	if (!best.score)
		return 0;
	return f->second ? ct_bucket(hash >> 32) : f->bucket;
}

/* Makes the flow. f->bucket and f->version are from the look-up that missed. `reply` is the key of its spilled reply row. */
AI u64 ct_insert(u64 hash, const struct ct_key *key, const struct ct_key *reply, u64 value, u64 service, bool syn, u64 now,
		 struct ct_flow *f)
{
	u64 rc = CT_RETRY, *bucket, way;

	if (f->version & CT_VERSION_LOCKED)
		return CT_RETRY;
	if (CAS(CT_VERSION(f->bucket), f->version, f->version + CT_VERSION_LOCKED) != f->version)
		return CT_RETRY;
	bucket = ct_victim(hash, now, f, &way);
	if (LIKELY(bucket != 0)) {
		FORGET(way, hash);
		RACE_POINT(ENTRY_CLAIM);
		if (ct_claim(CT_WAY(bucket, way & (FLOW_WAYS - 1)), way & (FLOW_WAYS - 1), key, value, service, now, f)) {
			if (f->second)
				WR8(&CT_STAMPS(f->bucket)[0], stamp_now(now));
			rc = CT_OK;
		}
	} else {
		f->value = value;
		rc = syn && value_is_snat(value) ? CT_NO_STATE : ct_spill(key, reply, value, service, now, f);
	}
#ifdef LB_ARM64
	__sync_fetch_and_add(CT_VERSION(f->bucket), CT_VERSION_LOCKED);
#else
	MB();
	WR16((u16 *)CT_VERSION(f->bucket) + SEEN_BUCKET_SHIFT / 16, (u16)((f->version >> SEEN_BUCKET_SHIFT) + 2));
#endif
	return rc;
}

/* Replaces the value of a flow that was found, in place and with the entry's own generation, and its service. Returns false if its value is
 * no longer `old`. */
AI bool ct_flow_replace(struct ct_flow *f, u64 old, u64 value, u64 service)
{
	u64 next = value_in_entry(value, f->value), former = SEEN_SERVICE(f->seen_at);

	if (f->value != old || !ct_flow_set(f, next))
		return false;
	if (LIKELY(!f->spilled)) {
		flow_turned(former, old, 0);
		flow_turned(service, 0, next);
	}
	WR16(&SEEN_SERVICE(f->seen_at), service);
	WR16(&SEEN_HANDSHAKE(f->seen_at), 0); /* it opens again */
	f->value = next;
	return true;
}
