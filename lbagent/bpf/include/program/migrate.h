/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the mover: the agent runs it by BPF_PROG_TEST_RUN while flows and SNAT slots go to maps of another size
 * (docs/datapath.md, "Resizing"). Everything appears in the new map before it leaves the old one, so that a program that reads new,
 * old, new misses nothing. A second run over moved entries does nothing.
 *
 * The run's data is struct lb_migrate. One run advances `first` and reduces `count`, over at most one flow or MIGRATE_STEP
 * positions.
 */
#pragma once
#include "ct_find.h"
#include "ct_walk.h"
#include "snat_migrate.h"

/* Moves one flow, with its SNAT slot. */
AI void migrate_flow(struct lb_migrate *run, const struct ct_entry *e, u64 now)
{
	lb_path *path = path_of(value_backend(e->value));
	struct ct_key key, reply;
	struct ct_flow f = {};
	u64 seen, service, hash, rc;
	lb_addr backend;

	hash = ct_entry_key(e->at, e->owner, &key);
	if (!snat_migrate_of(e->value, &key, now, run->dry)) {
		run->lost++;
		return;
	}
	if (!MIGRATING_FLOWS) {
		run->moved++;
		return;
	}
	if (ct_find(hash, &key, now, &f)) {
		run->again += !run->dry && !ct_entry_leave(e, &(struct ct_flow){});
		return;
	}
	path_addr(path, &backend);
	ct_key_reply(&reply, &key, &backend, meta_port(PATH_META(path), KEY_VIP_PORT(&key)));
	seen = ct_entry_seen(e, &service);
	rc = ct_insert(hash, &key, &reply, value_in_entry(e->value, 0), service, false, now, &f);
	if (rc == CT_RETRY) {
		run->again++;
		return;
	}
	if (rc == CT_OK)
		ct_flow_inherit(&f, seen);
	run->moved += rc == CT_OK;
	run->spilled += rc == CT_SPILLED;
	run->lost += rc == CT_FULL;
	if (rc != CT_FULL && !run->dry)
		run->again += !ct_entry_leave(e, &f);
}

/* Moves the next live flow. A flow that has lost its SNAT port is not live, even if its age has wrapped. */
AI void migrate_flows(struct lb_migrate *run, u64 now)
{
	struct ct_entry e = {};
	u64 n, found = 0;

	NO_UNROLL
	for (n = 0; n < MIGRATE_STEP; n++) {
		if (n >= run->count || found)
			break;
		found = ct_entry_read(ct_old_entry_at(run->first + n), &e) && ct_entry_is_whole(&e) &&
			!ct_entry_is_expired(&e, now, ct_entry_timeout(&e)) && !ct_entry_lost_snat(&e);
	}
	run->first += n;
	run->count -= n;
	if (found && e.at)
		migrate_flow(run, &e, now);
}

/* Returns the target of a slot of the old map. A slot does not hold its port: the port follows from the position, unless the old
 * map has fewer slots than there are ports. Returns NULL then, and for a backend behind a range of ports, whose slots depend on the
 * flow's port, too: such a slot moves with its flow. */
AI u64 *migrate_target(u64 index, u64 backend)
{
	u64 bh = backend_hash(backend, 0), port;

	if (CFG_SNAT_MASK < CFG_SNAT_OLD_MASK)
		return snat_slot_at(index);
	if (!META_PORT(PATH_META(path_of(backend))))
		return 0;
	port = CFG(reply_port_min) + ((index - bh - CFG(reply_port_min)) & CFG_SNAT_OLD_MASK);
	if (port > CFG(reply_port_max) || port + CFG_SNAT_OLD_MASK + 1 <= CFG(reply_port_max))
		return 0;
	return snat_slot_of(bh, HTONS(port));
}

/* Moves the slots that no flow of the table refers to: those of spilled flows, and of handshakes without state. */
AI void migrate_snat_slots(struct lb_migrate *run, u64 now)
{
	u64 n;

	NO_UNROLL
	for (n = 0; n < MIGRATE_STEP / 8; n++) {
		u64 index = run->first + n, *to;
		struct snat_view view;

		if (n >= run->count)
			break;
		if (!snat_slot_read(snat_old_slot_at(index), &view) || snat_slot_is_stale(view.meta, now))
			continue;
		to = migrate_target(index, snat_view_backend(&view));
		if (to && !snat_migrate(view.slot, to, run->dry))
			run->lost++;
	}
	run->first += n;
	run->count -= n;
}

/* Stamps the new table's buckets whose flows are in the spill map. `first` runs over the buckets of the larger table. */
AI void migrate_stamps(struct lb_migrate *run, u64 now)
{
	u64 n;

	NO_UNROLL
	for (n = 0; n < MIGRATE_STEP / 2; n++) {
		if (n >= run->count)
			break;
		ct_carry_stamp(run->first + n, now);
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
