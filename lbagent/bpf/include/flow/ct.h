/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains a flow that was found (ct_find.h), and the functions by which others use it. Design: docs/datapath.md, "the flow
 * table". Two buckets of four ways a flow, chosen by the client's address, port and protocol: both directions have these.
 *
 * Readers take no lock. An insert takes the primary bucket's version, as read before the look-up, by compare-and-swap: success
 * proves that no other CPU inserted there since, so one flow never gets two entries.
 */
#pragma once
#include "snat.h"

/* Seen word of an entry or spill row at `sp`: four parts of 16 bits, the first one last seen. */
#define SEEN_SERVICE(sp) (*((u16 *)(sp) + SEEN_SERVICE_SHIFT / 16))
#define SEEN_NEXTHOP(sp) (*((u16 *)(sp) + SEEN_CLIENT_HOP_SHIFT / 16))
#define SEEN_HANDSHAKE(sp) SEEN_NEXTHOP(sp) /* of a flow that is opening (ct_state.h) */
#define AFTER_RST (AFTER_RST_CLIENT | AFTER_RST_BACKEND)

_Static_assert(!SEEN_LAST_SEEN_SHIFT && !(SEEN_BUCKET_SHIFT % 16 | SEEN_SERVICE_SHIFT % 16 | SEEN_CLIENT_HOP_SHIFT % 16), "parts of the seen word");

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
	u64 hash;     /* of its client, where a reply found it */
	bool second;  /* lies in the second bucket */
	bool spilled; /* lies in the spill map */
	bool unswept; /* lies where no sweeper runs: its age may have wrapped */
};

AI u64 *ct_bucket(u64 hash)
{
	return (u64 *)(FAMILY_VAL(flow) + (hash & CFG_FLOW_MASK & ~(u64)(FLOW_WAYS - 1)) * (CT_ENTRY_WORDS * 8));
}

#define CT_WAY(b, w) ((b) + (w) * CT_ENTRY_WORDS)
/* The bucket's own bits of the seen words: of way 0 the insert version, of way 1 two stamps, of the others nothing. */
#define CT_VERSION(b) (CT_WAY(b, 0) + E_SEEN) /* the version is odd during an insertion */
#define CT_VERSION_LOCKED (1ULL << SEEN_BUCKET_SHIFT)
#define CT_STAMPS(b) ((u8 *)(CT_WAY(b, 1) + E_SEEN) + SEEN_BUCKET_SHIFT / 8) /* [0]: entries lie in the second bucket; [1]: in the spill map */

/* The place of an entry of a bucket. */
AI u64 *ct_entry_at(u64 *bucket, u64 way)
{
	return CT_WAY(bucket, way);
}

/* Stamps count units of 256 ticks, 0 = never. While a stamp is fresh, a look-up must also search the place it stands for. */
AI u8 stamp_now(u64 now)
{
	u8 n = now >> 8;

	return n ? n : 1;
}

AI bool stamp_fresh(u8 stamp, u64 now)
{
	return stamp && (u8)(stamp_now(now) - stamp) <= (CFG(timeout_longest) >> 8) + 1;
}

/* Notes the entry a flow was found in. */
AI void ct_flow_at(struct ct_flow *f, u64 *e)
{
	f->value_at = e + E_VALUE;
	f->seen_at = e + E_SEEN;
}

/* A bucket of the table that is being left. */
AI u64 *ct_old_bucket(u64 hash)
{
	return (u64 *)(FAMILY_VAL(flow_old) + (hash & CFG_FLOW_OLD_MASK & ~(u64)(FLOW_WAYS - 1)) * (CT_ENTRY_WORDS * 8));
}

/* Ticks since the flow was last seen. */
AI u64 ct_flow_age(const struct ct_flow *f, u64 now)
{
	return (now - RD16(f->seen_at)) & 0xffff;
}

/* Returns how idle an entry's flow is, 17 bits: ticks since it was last seen, then the state: an established flow (or one that begins)
 * is less idle. */
AI u64 ct_entry_idleness(u64 *e, u64 value, u64 now)
{
	return ((now - RD16(e + E_SEEN)) & 0xffff) << 1 | V_STATE(value) >> 1;
}

/* 1 if the flow has expired, else 0. Without a branch, as the next one: the verifier counts paths. */
AI u64 ct_flow_is_expired(const struct ct_flow *f, u64 l4, u64 now)
{
	u64 over = ct_timeout(V_STATE(f->value), l4) - ct_flow_age(f, now);

	OPAQUE(over);
	return over >> 63;
}

/* 1 if the flow's age is not reliable, so that its SNAT slot must be checked, else 0. */
AI u64 ct_flow_age_in_doubt(const struct ct_flow *f, u64 now)
{
	u64 doubt = 0 - (now >> 16);

	OPAQUE(doubt);
	return doubt >> 63 | f->unswept;
}

AI u16 ct_flow_service(const struct ct_flow *f)
{
	return SEEN_SERVICE(f->seen_at);
}

/* Returns the index of the next hop towards the client, 0 = not learned. If a RST has ended the flow, bits of AFTER_RST may be set,
 * too: nexthop_read() uses the index alone. */
AI u64 ct_flow_nexthop(const struct ct_flow *f)
{
	u64 word = SEEN_NEXTHOP(f->seen_at);

	return word & (HANDSHAKE_ANSWERED | HANDSHAKE_OLDER) ? 0 : word;
}

/* Returns 0 if only the client's first SYNs were seen of the flow: then a segment of the backend without SYN belongs to no connection
 * of this flow. Else returns some bit, also for a spilled flow: it has two rows, so the answer is not known. Without a branch: the
 * verifier counts ways. */
AI u64 ct_flow_is_answered(const struct ct_flow *f)
{
	return V_STATE(f->value) | f->spilled | (SEEN_HANDSHAKE(f->seen_at) & (HANDSHAKE_ANSWERED | HANDSHAKE_OLDER));
}

/* Keeps the bits of AFTER_RST beside the index (ct_state.h). */
AI void ct_flow_learn_nexthop(const struct ct_flow *f, u64 index)
{
	WR16(&SEEN_NEXTHOP(f->seen_at), (SEEN_NEXTHOP(f->seen_at) & AFTER_RST) | index);
}

#if LB_FAMILY == 6
/* The entry's last word, in which the caller caches a sum of the flow. */
AI u64 ct_flow_csum(const struct ct_flow *f)
{
	return RD64(f->seen_at + E_CHECKSUM - E_SEEN);
}

AI void ct_flow_keep_csum(const struct ct_flow *f, u64 word)
{
	WR64(f->seen_at + E_CHECKSUM - E_SEEN, word);
}
#endif

/* Replaces the value if it still is as it was read. Returns whether it was. */
AI bool ct_flow_set(const struct ct_flow *f, u64 next)
{
	return CAS(f->value_at, f->value, next) == f->value;
}

/* Has the flow lost its SNAT port to another flow? */
AI bool ct_flow_lost_snat(const struct ct_flow *f, const struct ct_key *key)
{
	return snat_is_lost(f->value, KEY_OWNER(key), KEY_CLIENT(key), KEY_VIP_PORT(key), SEEN_SERVICE(f->seen_at));
}

/* Gives back the SNAT port of a value of the flow `key`, if it has one. */
AI void ct_release_snat(u64 value, const struct ct_key *key)
{
	snat_release(value, KEY_OWNER(key), KEY_CLIENT(key), KEY_VIP_PORT(key));
}
