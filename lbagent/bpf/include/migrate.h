/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the mover: the agent runs it by BPF_PROG_TEST_RUN while flows and SNAT slots go to maps of another size
 * (docs/datapath.md, "Resizing"). Everything appears in the new map before it leaves the old one, so that a program that looks
 * new, old, new misses nothing. Running it again over what was moved does nothing.
 *
 * The run's data is struct lb_migrate. One run moves `first` and `count` on, over at most one flow or MIGRATE_STEP positions.
 */
#pragma once
#include "flow_create.h"

AI u64 ct_entry_key(u64 *e, u64 owner, struct ct_key *k)
{
#if LB_FAMILY == 4
	k->k0 = owner & ~GEN_MASK;
	k->k1 = RD64(e + 1) & ~GEN_MASK;
	return mix(k->k0);
#else
	k->owner = owner & ~GEN_MASK;
	k->client.w[0] = RD64(e + 1);
	k->client.w[1] = RD64(e + 2);
	k->vip.w[0] = RD64(e + 3);
	k->vip.w[1] = RD64(e + 4);
	return mix6(&k->client, owner >> 48 << 16 | (OWNER_IS_UDP(owner) ? PROTO_UDP : PROTO_TCP));
#endif
}

/* Moves one slot. Returns false if the new place is somebody else's. */
AI bool migrate_snat_slot(u64 *from, u64 *to, u64 dry)
{
	u64 s0 = RD64(from), meta = RD64(from + SNAT_SLOT_META), t0 = RD64(to);
	lb_addr client;

#if LB_FAMILY == 6
	client.w[0] = RD64(from + 1);
	client.w[1] = RD64(from + 2);
#else
	client.w[0] = 0;
#endif
	if (t0 >> 16) {
		if (!snat_slot_client_is(to, t0, s0, &client) || SNAT_SLOT_BACKEND(RD64(to + SNAT_SLOT_META)) != SNAT_SLOT_BACKEND(meta))
			return false;
	} else {
		if (CAS(to, t0, s0) != t0)
			return false;
		snat_slot_write(to, &client, meta);
	}
	if (!dry)
		CAS(from, s0, s0 & SNAT_SLOT_GEN);
	return true;
}

/* Moves the slot a flow's value speaks of, if it is still the flow's. Returns false if there is no room for it. */
AI bool migrate_snat_slot_of(u64 value, u64 owner, const lb_addr *client, u64 now, u64 dry)
{
	u64 *from, *to;

	if (!MIGRATING_SNAT || !V_SNAT(value))
		return true;
	from = snat_old_slot_of_value(value);
	to = snat_slot_of_value(value);
	if (!snat_slot_is_of(from, RD64(from), value, owner, client))
		return true;
	if (!migrate_snat_slot(from, to, dry))
		return false;
	if (V_STATE(value) == CT_EST) /* in case the lease of its beginning is the one it still has */
		snat_renew(value, owner, client, SNAT_SLOT_SERVICE(RD64(to + SNAT_SLOT_META)), now);
	return true;
}

/* Takes the flow out of the old table, with what changed since its value was read. Returns false if it changed once more. */
AI bool migrate_out(u64 *e, u64 owner, u64 value, struct ct_flow *f)
{
	u64 next;

	NO_UNROLL
	for (u64 n = 0; n < 2; n++) {
		next = CAS(e + E_VALUE, value, value ^ 1); /* the generation fits no more: nobody finds it, no change comes through */
		if (next == value) {
			WR64(e, owner & GEN_MASK);
			return true;
		}
		if ((next ^ value) & GEN_MASK)
			return true;
		if (f->value_at)
			CAS(f->value_at, f->value, (next & ~GEN_MASK) | (f->value & GEN_MASK));
		value = next;
	}
	return false;
}

AI void migrate_flow(struct lb_migrate *run, u64 *e, u64 owner, u64 value, u64 now)
{
	u64 seen = RD64(e + E_SEEN), hash, rc;
	struct ct_key key, reply;
	struct ct_flow f = {};
	lb_path *path = path_of(V_BACKEND(value));
	lb_addr backend, client;

	hash = ct_entry_key(e, owner, &key);
#if LB_FAMILY == 4
	client.w[0] = key.k0 >> 32;
#define OWNER_PORT(owner) ((u16)((owner) >> 16))
#else
	client = key.client;
#define OWNER_PORT(owner) ((u16)((owner) >> 48))
#endif
	if (!migrate_snat_slot_of(value, owner, &client, now, run->dry)) {
		run->lost++;
		return;
	}
	if (!MIGRATING_FLOWS) {
		run->moved++;
		return;
	}
	if (ct_find(hash, &key, now, &f)) {
		run->again += !run->dry && !migrate_out(e, owner, value, &(struct ct_flow){});
		return;
	}
	path_addr(path, &backend);
	ct_reply_key(&reply, &client, OWNER_PORT(owner), &backend, META_PORT(PATH_META(path)),
		  OWNER_IS_UDP(owner) ? PROTO_UDP : PROTO_TCP);
	rc = ct_insert(hash, &key, &reply, value & ~GEN_MASK, SEEN_SERVICE(&seen), false, now, &f);
	if (rc == CT_RETRY) {
		run->again++;
		return;
	}
	if (rc == CT_OK) {
		WR16(f.seen_at, seen);
		WR16(&SEEN_NEXTHOP(f.seen_at), SEEN_NEXTHOP(&seen));
	}
	run->moved += rc == CT_OK;
	run->spilled += rc == CT_SPILLED;
	run->lost += rc == CT_FULL;
	if (rc != CT_FULL && !run->dry)
		run->again += !migrate_out(e, owner, value, &f);
}

/* Moves the next flow that lives. */
AI void migrate_flows(struct lb_migrate *run, u64 now)
{
	u64 n, owner = 0, value = 0, found = 0, *e = 0;

	NO_UNROLL
	for (n = 0; n < MIGRATE_STEP; n++) {
		if (n >= run->count || found)
			break;
		e = ct_old_bucket(0) + ((run->first + n) & (MIGRATING_FLOWS ? CFG_FLOW_OLD_MASK : CFG_FLOW_MASK)) * CT_ENTRY_WORDS;
		owner = RD64(e);
		value = RD64(e + E_VALUE);
		found = owner >> 16 && !((owner ^ value) & GEN_MASK) &&
			((now - RD16(e + E_SEEN)) & 0xffff) <= ct_timeout(V_STATE(value), OWNER_IS_UDP(owner));
	}
	run->first += n;
	run->count -= n;
	if (found && e)
		migrate_flow(run, e, owner, value, now);
}

/* Where a slot of the old map goes. A slot does not know its port: it follows from the place where it lies, unless the old map
 * has fewer slots than there are ports. Returns NULL then: such a slot goes with its flow. */
AI u64 *migrate_target(u64 index, u64 meta)
{
	lb_path *path = path_of(SNAT_SLOT_BACKEND(meta));
	u64 bh = path_hash(path, PATH_META(path)), port;

	if (CFG_SNAT_MASK < CFG_SNAT_OLD_MASK)
		return (u64 *)(FAMILY_VAL(snat) + (index & CFG_SNAT_MASK) * SNAT_SLOT_BYTES);
	port = CFG(snat_port_min) + ((index - bh - CFG(snat_port_min)) & CFG_SNAT_OLD_MASK);
	if (port > CFG(snat_port_max) || port + CFG_SNAT_OLD_MASK + 1 <= CFG(snat_port_max))
		return 0;
	return snat_slot_of(bh, HTONS(port));
}

/* Moves the slots that no flow of the table speaks of: of spilled flows, and of handshakes without state. */
AI void migrate_snat_slots(struct lb_migrate *run, u64 now)
{
	u64 n;

	NO_UNROLL
	for (n = 0; n < MIGRATE_STEP / 8; n++) {
		u64 index = run->first + n, *from, *to, s0, meta;

		if (n >= run->count)
			break;
		from = (u64 *)(FAMILY_VAL(snat_old) + (index & CFG_SNAT_OLD_MASK) * SNAT_SLOT_BYTES);
		s0 = RD64(from);
		meta = RD64(from + SNAT_SLOT_META);
		if (!(s0 >> 16) || (s0 ^ meta) & 15 || snat_slot_stale(meta, now))
			continue;
		to = migrate_target(index, meta);
		if (to && !migrate_snat_slot(from, to, run->dry))
			run->lost++;
	}
	run->first += n;
	run->count -= n;
}

/* Tells the new table's buckets which flows lie in the spill map. `first` runs over the buckets of the larger table. */
AI void migrate_stamps(struct lb_migrate *run, u64 now)
{
	u64 n;

	NO_UNROLL
	for (n = 0; n < MIGRATE_STEP / 2; n++) {
		u64 bucket = (run->first + n) * FLOW_WAYS;
		u8 stamp, *to;

		if (n >= run->count)
			break;
		stamp = CT_STAMPS(ct_old_bucket(bucket))[1];
		to = CT_STAMPS(ct_bucket(bucket)) + 1;
		if (stamp_fresh(stamp, now) && (!stamp_fresh(*to, now) || (u8)(stamp - *to) < 128))
			WR8(to, stamp);
	}
	run->first += n;
	run->count -= n;
}

AI int migrate_main(lb_ctx *ctx)
{
	struct lb_migrate *run = (struct lb_migrate *)CTX_DATA(ctx);
	u64 now = now_ticks();

	if ((u8 *)(run + 1) > CTX_END(ctx) || (!MIGRATING_FLOWS && !MIGRATING_SNAT) || !run->count)
		return 0;
	if (run->what == MIGRATE_FLOWS)
		migrate_flows(run, now);
	else if (run->what == MIGRATE_SNAT_SLOTS && MIGRATING_SNAT)
		migrate_snat_slots(run, now);
	else if (run->what == MIGRATE_STAMPS && MIGRATING_FLOWS)
		migrate_stamps(run, now);
	else
		run->count = 0;
	return 0;
}
