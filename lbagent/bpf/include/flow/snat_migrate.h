/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains how a SNAT slot goes from the map that is being left to the new one (migrate.h).
 */
#pragma once
#include "snat.h"

/* Moves one slot. `dry`: leaves the old one as it is. Returns false if the new place is another flow's. */
AI bool snat_migrate(u64 *from, u64 *to, u64 dry)
{
	u64 s0 = RD64(from), meta = RD64(from + SNAT_SLOT_META), t0 = RD64(to);
	lb_addr client;

	snat_slot_client(from, s0, &client);
	if (SNAT_SLOT_IS_HELD(t0)) {
		if (!snat_slot_client_is(to, t0, s0, &client) || SNAT_SLOT_BACKEND(RD64(to + SNAT_SLOT_META)) != SNAT_SLOT_BACKEND(meta))
			return false;
	} else {
		if (CAS(to, t0, s0) != t0)
			return false;
		snat_slot_write(to, &client, meta);
	}
	if (!dry)
		snat_slot_free(from, s0);
	return true;
}

/* Moves the slot the value of the flow `key` speaks of, if it is still the flow's. Returns false if there is no room for it. */
AI bool snat_migrate_of(u64 value, const struct ct_key *key, u64 now, u64 dry)
{
	u64 *from, *to, owner = KEY_OWNER(key);

	if (!MIGRATING_SNAT || !value_is_snat(value))
		return true;
	from = snat_old_slot_of_value(value);
	to = snat_slot_of_value(value);
	if (!snat_slot_is_of(from, RD64(from), value, owner, KEY_CLIENT(key)))
		return true;
	if (!snat_migrate(from, to, dry))
		return false;
	if (V_STATE(value) == CT_ESTABLISHED) /* in case the lease of its beginning is the one it still has */
		snat_renew(value, owner, KEY_CLIENT(key), SNAT_SLOT_SERVICE(RD64(to + SNAT_SLOT_META)), now);
	return true;
}
