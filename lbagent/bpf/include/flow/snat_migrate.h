/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the move of a SNAT slot from the old map to the new one (migrate.h).
 */
#pragma once
#include "snat.h"

/* Moves one slot. `dry`: leaves the old one unchanged. Returns false if another flow holds the new slot. */
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

/* Moves the slot that the value of the flow `key` refers to, if the flow still holds it. Returns false if there is no room for it. */
AI bool snat_migrate_of(u64 value, const struct ct_key *key, u64 now, u64 dry)
{
	u64 *from, *to, owner = KEY_OWNER(key);

	if (!MIGRATING_SNAT || !value_is_snat(value))
		return true;
	from = snat_old_slot_of_value(value, KEY_VIP_PORT(key));
	to = snat_slot_of_value(value, KEY_VIP_PORT(key));
	if (!snat_slot_is_of(from, RD64(from), value, owner, KEY_CLIENT(key)))
		return true;
	if (!snat_migrate(from, to, dry))
		return false;
	if (V_STATE(value) == CT_ESTABLISHED) /* if it still has the lease of its first packet */
		snat_renew(value, owner, KEY_CLIENT(key), KEY_VIP_PORT(key), SNAT_SLOT_SERVICE(RD64(to + SNAT_SLOT_META)), now);
	return true;
}
