/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what a packet of a known flow leaves in its entry: last seen, state, stamps of its bucket, lease of its SNAT
 * slot.
 */
#pragma once
#include "ct.h"

AI void ct_renew_snat(const struct ct_flow *f, u64 value, const struct ct_key *key, u64 now)
{
	snat_renew(value, KEY_OWNER(key), KEY_CLIENT(key), SEEN_SERVICE(f->seen_at), now);
}

#define SNAT_RENEW_FIRST 3 /* a first lease is short: renewed every 2^3 ticks, others every 2^8 */
#define SNAT_RENEW_LATER 8

/* Once a tick: last seen, stamps, lease of the SNAT slot. */
AI void ct_refresh_tick(const struct ct_flow *f, const struct ct_key *key, u64 now, u64 last)
{
	u64 renew = V_STATE(f->value) == CT_EST ? SNAT_RENEW_LATER : SNAT_RENEW_FIRST;

	WR16(f->seen_at, now);
	if (f->second)
		WR8(&CT_STAMPS(f->bucket)[0], stamp_now(now));
	if (f->spilled)
		WR8(&CT_STAMPS(f->bucket)[1], stamp_now(now));
	if (value_is_snat(f->value) && (last ^ now) >> renew)
		ct_renew_snat(f, f->value, key, now);
}

#define REFRESH_TRIES 3

AI void ct_refresh_state(const struct ct_flow *f, const struct ct_key *key, const struct lb_pkt *pk, u64 now, bool from_backend)
{
	u64 value = f->value, next = value;

	NO_UNROLL
	for (u64 n = 0; n < REFRESH_TRIES; n++) { /* the other side's FIN may come on another CPU just now: both must count */
		u64 seen;

		next = value_advance(value, pk, from_backend);
		if (next == value)
			return;
		seen = CAS(f->value_at, value, next);
		if (seen == value)
			break;
		if (value_identity(seen ^ value))
			return; /* it is another flow's entry by now, or has another backend */
		value = seen;
	}
	if (value_is_snat(next) && V_STATE(next) == CT_EST)
		ct_renew_snat(f, next, key, now);
}

/* Ends a flow: it stays for as long as its client may still send, so that each packet is told the same. */
AI void ct_flow_close(struct ct_flow *f, u64 now)
{
	u64 next = value_with_state(f->value, CT_CLOSING);

	if (ct_flow_set(f, next))
		f->value = next;
	WR16(f->seen_at, now);
}

/* Notes a packet of a known flow. */
AI void ct_refresh(const struct ct_flow *f, const struct ct_key *key, const struct lb_pkt *pk, u64 now, bool from_backend)
{
	u64 last = RD16(f->seen_at);

	if (last != now)
		ct_refresh_tick(f, key, now, last);
	ct_refresh_state(f, key, pk, now, from_backend);
}

/* The same for a client's packet on the fast path, which is no SYN, FIN or RST. Returns false, with nothing noted, if the slow path
 * must do it: one whose state changes, what is due more rarely, and ages in doubt (now_ticks_in()). What is due more rarely is due to a flow
 * not seen for 256 ticks as well, so a flow that may have lost its SNAT slot is never refreshed here. */
AI bool ct_refresh_fast(const struct ct_flow *f, const struct lb_pkt *pk, bool second, u64 now)
{
	u64 last = RD16(f->seen_at), est = V_STATE(f->value) == CT_EST;

	if (UNLIKELY(!est && pk->proto == PROTO_TCP)) /* its client's ACK establishes it */
		return false;
	if (UNLIKELY(last != now)) {
		if (second || (last ^ now) >> (est ? SNAT_RENEW_LATER : SNAT_RENEW_FIRST))
			return false;
		WR16(f->seen_at, now);
	}
	return true;
}
