/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the deletion of a flow that user space has read, only if its words still are what was read: a flow that changed
 * meanwhile, or that took over the entry, stays. The flow's SNAT slot is released, and of a spilled flow both rows are deleted.
 */
#pragma once
#include "ct_insert.h"

/* What was read: the flow's key and its value word. */
struct ct_deletion {
	struct ct_key key;
	u64 value;
	u64 idle_over; /* ticks without a packet that the flow must have had; 0: any */
	u64 reset;     /* a TCP flow keeps its entry, without backend */
	u64 now;
};

/* Makes a key of its words in the order of a spill row's key; IPv4 has two. */
AI void ct_key_of_words(struct ct_key *k, u64 first, u64 second, u64 third, u64 fourth, u64 fifth)
{
#if LB_FAMILY == 4
	k->k0 = first;
	k->k1 = second;
#else
	k->owner = first;
	k->client.w[0] = second;
	k->client.w[1] = third;
	k->vip.w[0] = fourth;
	k->vip.w[1] = fifth;
#endif
}

/* Is the flow to be reset? Another protocol has no RST. */
AI bool ct_is_reset(const struct ct_deletion *d)
{
	return d->reset && OWNER_L4(KEY_OWNER(&d->key)) == L4_TCP;
}

/* Has the flow had a packet within the ticks that it must have been idle? */
AI bool ct_is_busy(const struct ct_deletion *d, u64 *seen)
{
	return d->idle_over && ((d->now - RD16(seen)) & 0xffff) < d->idle_over;
}

/* Deletes the flow at this position of the table. Once its value has changed, no look-up finds the flow and no change of it succeeds.
 * An insertion or the sweeper may take the entry from then on, and releases the slot, as after any other flow. */
AI bool ct_delete_entry(u64 position, const struct ct_deletion *d)
{
	u64 *e = ct_entry_at(ct_bucket(position), position & (FLOW_WAYS - 1)), owner = RD64(e), gen = owner & GEN_MASK, value;
	u16 frontend_port = KEY_VIP_PORT(&d->key);
	lb_addr client;

	if (!ct_entry_match(e, &d->key, &value) || value != d->value || ct_is_busy(d, e + E_SEEN))
		return false;
	RACE_POINT(FLOW_DELETE);
	ct_entry_client(e, &client);
	if (ct_is_reset(d)) {
		if (CAS(e + E_VALUE, value, value_of_reset(value)) != value)
			return false;
		flow_turned(SEEN_SERVICE(e + E_SEEN), value, 0);
		snat_release(value, owner, &client, frontend_port);
		WR16(e + E_SEEN, d->now);
		return true;
	}
	if (CAS(e + E_VALUE, value, value ^ 1) != value)
		return false;
	flow_turned(SEEN_SERVICE(e + E_SEEN), value, 0);
	if (CAS(e, owner, OWNER_BUSY | gen) != owner)
		return true;
	snat_release(value, owner, &client, frontend_port);
	MB();
	WR64(e, gen);
	return true;
}

/* The same for a flow of the spill map. */
AI bool ct_delete_spilled(const struct ct_deletion *d)
{
	struct spill_key k = {d->key};
	struct spill_value *v = map_lookup(FAMILY_FD(spill), &k);
	u64 value = d->value;

	if (!v || v->value != value || ct_is_busy(d, &v->seen))
		return false;
	if (CAS(&v->value, value, value_of_reset(value)) != value)
		return false;
	ct_release_snat(value, &d->key);
	if (value_forward(value) == FORWARD_LOCAL)
		ct_unspill_reply(&d->key, value);
	if (ct_is_reset(d))
		WR16(&v->seen, d->now);
	else
		map_delete(FAMILY_FD(spill), &k);
	return true;
}
