/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains walking over the flow table entry by entry, for the programs the agent runs (sweep.h, migrate.h): reading an
 * entry, its key and age, freeing one, taking one out of the table that is being left.
 */
#pragma once
#include "ct_insert.h"

/* A bucket by its number. */
AI u64 *ct_bucket_at(u64 number)
{
	return ct_bucket(number * FLOW_WAYS);
}

/* A place in the table that is being left. */
AI u64 *ct_old_entry_at(u64 position)
{
	return ct_old_bucket(0) + (position & (MIGRATING_FLOWS ? CFG_FLOW_OLD_MASK : CFG_FLOW_MASK)) * CT_ENTRY_WORDS;
}

/* An entry as read. */
struct ct_entry {
	u64 *at;
	u64 owner, value;
};

/* Returns false if the way holds no flow, or one that is being written. `at`: from ct_entry_at() or ct_old_entry_at(). */
AI bool ct_entry_read(u64 *at, struct ct_entry *e)
{
	e->at = at;
	e->owner = RD64(at);
	e->value = RD64(at + E_VALUE);
	return OWNER_IS_HELD(e->owner);
}

AI u64 ct_entry_timeout(const struct ct_entry *e)
{
	return ct_timeout(V_STATE(e->value), OWNER_L4(e->owner));
}

AI bool ct_entry_is_expired(const struct ct_entry *e, u64 now, u64 limit)
{
	return ((now - RD16(e->at + E_SEEN)) & 0xffff) > limit;
}

/* Are owner and value of one flow? */
AI bool ct_entry_is_whole(const struct ct_entry *e)
{
	return !((e->owner ^ e->value) & GEN_MASK);
}

/* Has the flow lost its SNAT port to another flow? */
AI bool ct_entry_lost_snat(const struct ct_entry *e)
{
	u64 seen = RD64(e->at + E_SEEN);
	lb_addr client;

	ct_entry_client(e->at, &client);
	return snat_is_lost(e->value, e->owner, &client, ct_entry_vip_port(e->at, e->owner), SEEN_SERVICE(&seen));
}

/* The inputs of a sweep: TIMEOUTS_EST and TIMEOUTS_OTHER, the clock, and the tick until which ages are reliable. Read once, except that
 * tick: the verifier would follow the whole sweep once for each answer to its comparison. */
struct ct_sweep {
	u64 tick, est, other;
	const u64 *trusted_until;
};

/* 1 if the flow has ended: it has expired, or lost its SNAT port while ages are not reliable. */
AI u64 ct_entry_is_over(const struct ct_entry *e, const struct ct_sweep *rules)
{
	u64 limits = ct_timeouts(OWNER_L4(e->owner), rules->est, rules->other), state = V_STATE(e->value), over;

	OPAQUE(state);
	over = (limits >> (state << 4) & 0xffff) - (rules->tick - RD16(e->at + E_SEEN) & 0xffff);
	OPAQUE(over);
	over >>= 63;
	if (UNLIKELY((s64)(RD64(rules->trusted_until) - rules->tick) < 0))
		over |= ct_entry_lost_snat(e);
	return over;
}

/* Frees an entry whose flow has ended. A packet may arrive between the check and the claim, so it is checked again. */
AI void ct_entry_expire(const struct ct_entry *e, const struct ct_sweep *rules)
{
	u64 gen = e->owner & GEN_MASK;

	RACE_POINT(ENTRY_EXPIRE);
	if (CAS(e->at, e->owner, OWNER_BUSY | gen) != e->owner)
		return;
	if (!ct_entry_is_over(e, rules)) {
		WR64(e->at, e->owner);
		return;
	}
	ct_evict(e->at, e->owner);
	MB();
	WR64(e->at, gen);
}

/* May the flow continue with another backend while its own is alive? A connection may not. */
AI bool ct_entry_may_move(const struct ct_entry *e)
{
	switch (OWNER_L4(e->owner)) {
	case L4_UDP:
		return true;
	case L4_TCP:
	case L4_SCTP:
	default:
		return false;
	}
}

/* Takes the backend from a flow whose frontend is gone, or no longer has this backend. An opening connection keeps its backend, unless
 * `opening`: the slow path sees all its packets, and a SYN may be giving it to another frontend at this moment. Returns whether the
 * flow had a backend; if a packet changes the flow meanwhile, it still has it. */
AI bool ct_entry_end(const struct ct_entry *e, u64 opening)
{
	bool opens = !opening && V_STATE(e->value) == CT_NEW && OWNER_L4(e->owner) != L4_UDP;

	if (opens || !value_is_served(e->value, PATH_META(path_of(V_BACKEND(e->value)))))
		return false;
	RACE_POINT(ENTRY_END);
	CAS(e->at + E_VALUE, e->value, value_without_backend(e->value));
	return true;
}

/* Takes an entry out of the old table. Changes since its value was read go to `f`, its flow in the new one (value_at 0: none). Returns
 * false if it changed again. */
AI bool ct_entry_leave(const struct ct_entry *e, struct ct_flow *f)
{
	u64 value = e->value, next;

	RACE_POINT(ENTRY_LEAVE);
	NO_UNROLL
	for (u64 n = 0; n < 2; n++) {
		next = CAS(e->at + E_VALUE, value, value ^ 1); /* the generation no longer matches: no look-up finds it, no change succeeds */
		if (next == value) {
			WR64(e->at, e->owner & GEN_MASK);
			return true;
		}
		if ((next ^ value) & GEN_MASK)
			return true;
		if (f->value_at)
			ct_flow_set(f, value_in_entry(next, f->value));
		value = next;
	}
	return false;
}

/* Copies last seen and next hop to the flow `f` from the entry it was copied from; `seen`: that entry's seen word. */
AI void ct_flow_inherit(const struct ct_flow *f, u64 seen)
{
	WR16(f->seen_at, seen);
	WR16(&SEEN_NEXTHOP(f->seen_at), SEEN_NEXTHOP(&seen));
}

/* Returns an entry's seen word, and the service it names. */
AI u64 ct_entry_seen(const struct ct_entry *e, u64 *service)
{
	u64 seen = RD64(e->at + E_SEEN);

	*service = SEEN_SERVICE(&seen);
	return seen;
}

/* Stamps a bucket of the new table if flows of the old bucket are in the spill map. */
AI void ct_carry_stamp(u64 bucket, u64 now)
{
	u8 stamp = CT_STAMPS(ct_old_bucket(bucket * FLOW_WAYS))[1], *to = CT_STAMPS(ct_bucket(bucket * FLOW_WAYS)) + 1;

	if (stamp_fresh(stamp, now) && (!stamp_fresh(*to, now) || (u8)(stamp - *to) < 128))
		WR8(to, stamp);
}
