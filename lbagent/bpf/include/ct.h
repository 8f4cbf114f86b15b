/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains connection tracking: find, create and refresh flows. Design: docs/datapath.md, "the flow table". Two
 * buckets of four ways a flow, chosen by the client's address, port and protocol: both directions know these.
 *
 * Readers take no lock. An insert takes the primary bucket's version, as read before the look-up, by compare-and-swap: success
 * proves that nobody inserted there since, so one flow never gets two entries.
 */
#pragma once
#include "snat.h"

struct spill_value {
	u64 value, seen;
};

/* Key of lb{4,6}_spill. IPv4: the flow's two words; IPv6: owner word and both addresses. */
struct spill_key {
	struct ct_key key;
};

_Static_assert(sizeof(struct spill_key) == (LB_FAMILY == 4 ? SPILL4_KEY : SPILL6_KEY), "spill key");
_Static_assert(sizeof(struct spill_value) == SPILL_VALUE, "spill value");

/* A flow that was found: where its words are (table entry or spill value), and its value as read. */
struct ct_flow {
	u64 *value_at, *seen_at;
	u64 value;
	u64 *bucket;  /* primary */
	u64 version;  /* of the primary bucket, before the look-up */
	bool second;  /* lies in the second bucket */
	bool spilled; /* lies in the spill map */
};

AI u64 *ct_bucket(u64 hash)
{
	return (u64 *)(FAMILY_VAL(flow) + (hash & CFG_FLOW_MASK & ~(u64)(FLOW_WAYS - 1)) * (CT_ENTRY_WORDS * 8));
}

#define CT_WAY(b, w) ((b) + (w) * CT_ENTRY_WORDS)
#define CT_VERSION(b) (CT_WAY(b, 0) + E_SEEN) /* version in bits 16..31, odd (bit 16) while somebody inserts */
#define CT_VERSION_LOCKED (1ULL << 16)
#define CT_STAMPS(b) ((u8 *)(CT_WAY(b, 1) + E_SEEN) + 2) /* [0]: entries lie in the second bucket; [1]: in the spill map */

/* Stamps count 256 ticks, 0 = never. They say "until then a look-up must look there too". */
AI u8 stamp_now(u64 now)
{
	u8 n = now >> 8;

	return n ? n : 1;
}

AI bool stamp_fresh(u8 stamp, u64 now)
{
	u64 life = CFG(timeout_tcp) > CFG(timeout_udp) ? CFG(timeout_tcp) : CFG(timeout_udp);

	return stamp && (u8)(stamp_now(now) - stamp) <= (life >> 8) + 1;
}

AI bool ct_find_in(u64 *bucket, const struct ct_key *key, struct ct_flow *f)
{
#pragma unroll
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		u64 *e = CT_WAY(bucket, w);

		if (ct_entry_match(e, key, &f->value)) {
			f->value_at = e + E_VALUE;
			f->seen_at = e + E_SEEN;
			return true;
		}
	}
	return false;
}

/* The same for the client's plain frame at `data`. */
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
	f->bucket = ct_bucket(hash);
	f->version = RD64(CT_VERSION(f->bucket));
	f->second = f->spilled = false;
	MB();
	if (ct_find_in(f->bucket, key, f))
		return true;
	if (!stamp_fresh(CT_STAMPS(f->bucket)[0], now))
		return false;
	f->second = true;
	return ct_find_in(ct_bucket(hash >> 32), key, f);
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
	f->spilled = true;
	return true;
}

/* A bucket of the table that is being left. */
AI u64 *ct_old_bucket(u64 hash)
{
	return (u64 *)(FAMILY_VAL(flow_old) + (hash & CFG_FLOW_OLD_MASK & ~(u64)(FLOW_WAYS - 1)) * (CT_ENTRY_WORDS * 8));
}

/* Finds a flow off the fast path: wherever it is. One that is being moved is in the new table before it leaves the old one. */
AI bool ct_find_slow(u64 hash, const struct ct_key *key, u64 now, struct ct_flow *f)
{
	if (ct_find(hash, key, now, f) || ct_find_spilled(key, now, f))
		return true;
	if (!MIGRATING_FLOWS)
		return false;
	f->second = false;
	return ct_find_in(ct_old_bucket(hash), key, f) || ct_find_in(ct_old_bucket(hash >> 32), key, f) || ct_find(hash, key, now, f);
}

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

AI u64 ct_timeout(u64 state, u64 udp)
{
	if (state == CT_EST)
		return udp ? CFG(timeout_udp) : CFG(timeout_tcp);
	return state == CT_CLOSING ? CFG(timeout_closing) : CFG(timeout_new);
}

/* Ticks since the flow was last seen. */
AI u64 ct_age(const struct ct_flow *f, u64 now)
{
	return (now - RD16(f->seen_at)) & 0xffff;
}

/* Returns the value word after a packet of the flow, from its client or from its backend. */
AI u64 ct_advance(u64 v, const struct lb_pkt *pk, bool from_backend)
{
	u64 flags = pk->tcp_flags, state = V_STATE(v);

	if (pk->proto == PROTO_UDP)
		return from_backend ? (v & ~V_STATE_MASK) | CT_EST << 16 : v;
	if (flags & TCP_RST)
		return (v & ~V_STATE_MASK) | CT_CLOSING << 16;
	if (flags & TCP_FIN)
		v |= from_backend ? V_FIN_BACKEND : V_FIN_CLIENT;
	if ((v & V_FIN_CLIENT) && (v & V_FIN_BACKEND))
		return (v & ~V_STATE_MASK) | CT_CLOSING << 16;
	/* not by a SYN-ACK: a flood of SYNs would make every flow an established one */
	if ((state == CT_NEW || state == CT_MID) && !(flags & TCP_SYN))
		return (v & ~V_STATE_MASK) | CT_EST << 16;
	return v;
}

AI void ct_renew_snat(const struct ct_flow *f, u64 value, const struct ct_key *key, u64 now)
{
	snat_renew(value, KEY_OWNER(key), KEY_CLIENT(key), SEEN_SERVICE(f->seen_at), now);
}

/* Is the backend still the one the flow with this value was given? */
AI bool path_serves(u64 meta, u64 value)
{
	return ((meta >> 16 ^ V_BACKEND_GEN(value)) & 0x1ff) == PATH_LIVE << 8;
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
	if (V_SNAT(f->value) && (last ^ now) >> renew)
		ct_renew_snat(f, f->value, key, now);
}

AI void ct_refresh_state(const struct ct_flow *f, const struct ct_key *key, const struct lb_pkt *pk, u64 now, bool from_backend)
{
	u64 next = ct_advance(f->value, pk, from_backend);

	if (next == f->value)
		return;
	CAS(f->value_at, f->value, next);
	if (V_SNAT(next) && V_STATE(next) == CT_EST)
		ct_renew_snat(f, next, key, now);
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
 * must do it: a flow not seen for so long that it may have expired, one whose state changes, and what is due more rarely. */
AI bool ct_refresh_fast(const struct ct_flow *f, const struct lb_pkt *pk, bool second, u64 now)
{
	u64 last = RD16(f->seen_at), est = V_STATE(f->value) == CT_EST;

	if (UNLIKELY(!est && pk->proto != PROTO_UDP))
		return false;
	if (UNLIKELY(last != now)) {
		if (((now - last) & 0xffff) > CFG(timeout_new) || second || (last ^ now) >> (est ? SNAT_RENEW_LATER : SNAT_RENEW_FIRST))
			return false;
		WR16(f->seen_at, now);
	}
	return true;
}
