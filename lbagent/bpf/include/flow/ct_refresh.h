/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the updates by a packet of a known flow: last seen, state, stamps of its bucket, lease of its SNAT slot.
 */
#pragma once
#include "ct_state.h"

/* Starts the cache misses of a flow's primary bucket, so that they overlap with others. */
AI void ct_prefetch(u64 hash)
{
	u64 *b = ct_bucket(hash);

	RD64(b);
	RD64(b + 8);
#if LB_FAMILY == 6
	RD64(b + 16);
	RD64(b + 24);
#endif
}

AI void ct_renew_snat(const struct ct_flow *f, u64 value, const struct ct_key *key, u64 now)
{
	snat_renew(value, KEY_OWNER(key), KEY_CLIENT(key), KEY_VIP_PORT(key), SEEN_SERVICE(f->seen_at), now);
}

#define SNAT_RENEW_SHORT 3 /* a short lease is renewed every 2^3 ticks, that of a flow that keeps its port every 2^8 */
#define SNAT_RENEW_FULL 8

/* By how many bits "last seen" must change for the lease of the flow's slot to be renewed. */
AI u64 ct_renew_bits(u64 value, u64 l4)
{
	return value_keeps_port(value, l4) ? SNAT_RENEW_FULL : SNAT_RENEW_SHORT;
}

/* Once a tick: last seen, stamps, lease of the SNAT slot. `value`: the flow's, as it is now. */
AI void ct_refresh_tick(const struct ct_flow *f, const struct ct_key *key, u64 value, u64 now, u64 last)
{
	WR16(f->seen_at, now);
	if (f->second)
		WR8(&CT_STAMPS(f->bucket)[0], stamp_now(now));
	if (f->spilled)
		WR8(&CT_STAMPS(f->bucket)[1], stamp_now(now));
	if (value_is_snat(value) && (last ^ now) >> ct_renew_bits(value, OWNER_L4(KEY_OWNER(key))))
		ct_renew_snat(f, value, key, now);
}

#define REFRESH_TRIES 3

/* Returns the flow's value after this packet. The lease of its slot follows the state; a flow that its backend refused before it was
 * established releases the slot. Another CPU may process a packet of the other side at the same time: both must count. */
AI u64 ct_refresh_state(const struct ct_flow *f, const struct ct_key *key, const struct lb_pkt *pk, u64 number, u64 now, bool from_backend)
{
	u64 word = SEEN_HANDSHAKE(f->seen_at), value = f->value;
	struct ct_step step = {};
	bool stored = false;

	NO_UNROLL
	for (u64 n = 0; n < REFRESH_TRIES; n++) {
		u64 seen;

		step.value = value;
		step.word = word;
		ct_advance(&step, pk, number, now, from_backend);
		if (step.word != word)
			WR16(&SEEN_HANDSHAKE(f->seen_at), step.word);
		if (step.value == value)
			return value;
		FORGET(step.value, value);
		seen = CAS(f->value_at, value, step.value);
		stored = seen == value;
		if (stored)
			break;
		if (value_identity(seen ^ value))
			return f->value; /* the entry is now another flow's, or has another backend */
		value = seen;
	}
	if (!stored)
		return value;
	if (LIKELY(!f->spilled))
		flow_turned(SEEN_SERVICE(f->seen_at), value, step.value);
	if (value_is_snat(step.value))
		ct_renew_snat(f, step.value, key, now);
	else
		ct_release_snat(value, key);
	return step.value;
}

/* Ends a flow. Its entry stays for as long as its client may still send, so that each packet gets the same answer. */
AI void ct_flow_close(struct ct_flow *f, u64 now)
{
	u64 next = value_finished(f->value);

	if (ct_flow_set(f, next)) {
		if (LIKELY(!f->spilled))
			flow_turned(SEEN_SERVICE(f->seen_at), f->value, next);
		f->value = next;
	}
	WR16(f->seen_at, now);
}

/* Records a packet of a known flow; returns the flow's value after it. `number`: for TCP, the number that the client's segment
 * acknowledges, or that would acknowledge the backend's SYN. A backend's packets keep only established flows alive. */
AI u64 ct_refresh(const struct ct_flow *f, const struct ct_key *key, const struct lb_pkt *pk, u64 number, u64 now, bool from_backend)
{
	u64 last = RD16(f->seen_at), value = ct_refresh_state(f, key, pk, number, now, from_backend);

	if (last != now && !(from_backend && value_is_opening(value)))
		ct_refresh_tick(f, key, value, now, last);
	return value;
}

/* The same for a client's packet on the fast path, which is no SYN, FIN or RST. Returns false, with nothing recorded, if the slow path
 * must do it: the state changes, a rare update is due, or ages are not reliable (now_ticks_in()). Rare updates are also due for a flow
 * not seen for 256 ticks, so a flow that may have lost its SNAT slot is never refreshed here. */
AI bool ct_refresh_fast(const struct ct_flow *f, const struct lb_pkt *pk, bool second, u64 now)
{
	u64 last = RD16(f->seen_at), est = V_STATE(f->value) == CT_ESTABLISHED;

	if (UNLIKELY(!est && pk->proto == PROTO_TCP)) /* its client's ACK may establish it */
		return false;
	if (UNLIKELY(last != now)) {
		if (second || (last ^ now) >> ct_renew_bits(f->value, l4_of(pk->proto)))
			return false;
		WR16(f->seen_at, now);
	}
	return true;
}
