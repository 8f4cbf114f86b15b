/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_FRAGMENT: a translated IPv4 datagram that exceeds the MTU of its path and has no DF leaves in
 * fragments (RFC 791 §3.2; an IPv6 router makes none, RFC 8200 §5). The stack cannot make them: it rejects a received packet whose
 * source is an address of the node, as in a translated request and in the reply of a NodePort. fragment_can() is called before
 * anything is translated; a datagram that cannot be cut is answered as if it had DF, which also senders obey that never set it.
 *
 * Input: scratch record with pk, out_macs and out_rest (the way out), answer_mtu; the frame is translated, its MAC addresses are
 * not written. lb_datagram holds the data after the first fragment while the frame itself becomes one fragment after the other.
 */
#pragma once
#include "fwd.h"

#define FRAGMENTS (HOOK_SENDS_COPIES && LB_FAMILY == 4)
#define FRAGMENT_MIN_MTU 68    /* bytes (RFC 791 §3.2) */
#define FRAGMENT_REST 0x2000   /* maximum of bytes after the first fragment; a power of two */
#define FRAGMENT_MORE 16       /* maximum of fragments after the first one */
#define FRAGMENT_BYTES(mtu) (((mtu) - IP_HLEN) & 0xfff8) /* data of each fragment except the last */

_Static_assert(2 * FRAGMENT_REST <= DATAGRAM_SIZE, "an offset and a length, each below FRAGMENT_REST, stay in lb_datagram");

/* Must the device still complete the L4 checksum of a whole datagram? It cannot do so for a fragment. */
AI bool fragment_csum_is_open(lb_ctx *ctx, const struct lb_pkt *pk)
{
	u64 at = L4_OFF(pk) + l4_csum_at(l4_of(pk->proto));
	u64 kept = 0, none = 0; /* whole words of the stack */
	bool open;

	if (ctx_load(ctx, at, &kept, sizeof(u16)) || ctx_store(ctx, at, &none, sizeof(u16)))
		return true;
	open = ctx_csum_partial(ctx, at);
	return ctx_store(ctx, at, &kept, sizeof(u16)) || open;
}

/* Can the datagram be sent in fragments that fit an MTU? Packet pointers are void afterwards. */
AI bool fragment_can(lb_ctx *ctx, const struct lb_pkt *pk, u64 mtu)
{
	u64 rest = pk->l3_len - IP_HLEN - FRAGMENT_BYTES(mtu);

	if (!FRAGMENTS || CTX_GSO_SIZE(ctx) || mtu < FRAGMENT_MIN_MTU || L4_OFF(pk) - L3_OFF(pk) != IP_HLEN)
		return false;
	if (rest > FRAGMENT_REST || rest > FRAGMENT_MORE * FRAGMENT_BYTES(mtu))
		return false;
	return pk->flags & PKT_FRAGMENT || !fragment_csum_is_open(ctx, pk);
}

/* Sends a translated frame for which fragment_can() returned true. */
AI int out_fragments(lb_ctx *ctx, const struct nexthop *nh, u64 mtu)
{
	struct lb_scratch *s = scratch();

	if (s) {
		s->out_macs = nh->macs;
		s->out_rest = nh->rest;
		s->answer_mtu = mtu;
		lb_call(ctx, FAMILY_CALL(CALL_FRAGMENT));
	}
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}

/* The fields of an IPv4 header that differ between fragments, in their order. */
struct fragment_head {
	__be16 length, id, offset;
	u8 ttl, proto;
	u16 csum;
};

/* Cuts the frame to `bytes` of data and writes its header; `offset` with flags, host order. Returns 0. */
AI int fragment_cut(lb_ctx *ctx, u64 l3, u64 bytes, u64 offset)
{
	struct fragment_head head = {};
	u16 length = HTONS(IP_HLEN + bytes), where = HTONS(offset);

	if (!ctx_resize(ctx, l3 + IP_HLEN + bytes, 0) || ctx_load(ctx, l3 + IP4_LEN, &head, sizeof(head)))
		return -1;
	head.csum = csum_apply(head.csum, word_diff(head.length, length) + word_diff(head.offset, where));
	head.length = length;
	head.offset = where;
	return ctx_store(ctx, l3 + IP4_LEN, &head, sizeof(head));
}

/* Returns fragment offset and flags of the frame, host order. */
AI u64 fragment_offset(lb_ctx *ctx, u64 l3)
{
	u16 word = 0;

	ctx_load(ctx, l3 + IP4_FRAGMENT, &word, sizeof(word));
	return NTOHS(word);
}

/* Sends the first fragment, with more to follow. Returns 0. */
AI int fragment_first(lb_ctx *ctx, const struct nexthop *nh, u64 l3, u64 piece, u64 offset)
{
	if (out_macs(ctx, nh) || fragment_cut(ctx, l3, piece, offset | NTOHS(IP4_MORE_FRAGMENTS)))
		return -1;
	ctx_send_copy(ctx, NEXTHOP_IFINDEX(nh)); /* a full device drops fragments like other packets */
	return 0;
}

/* The rest to be sent. It is in a map, behind the scratch record: a value read back from there is unknown to the verifier, so it
 * does not verify the loop once for each number of fragments. */
struct fragments {
	u64 at, left; /* in lb_datagram, bytes */
	u64 offset;   /* of the previous fragment, units of 8 bytes, with its flags */
};

_Static_assert(sizeof(struct lb_scratch) + sizeof(struct fragments) <= SCRATCH_SIZE, "what is left fits behind the scratch record");
#define FRAGMENTS_OF(s) ((volatile struct fragments *)((s) + 1))

/* Sends the rest of the datagram, which is at `rest`. */
AI int fragment_rest(lb_ctx *ctx, struct lb_scratch *s, const struct nexthop *nh, u8 *rest, u64 l3, u64 piece)
{
	volatile struct fragments *f = FRAGMENTS_OF(s);

	NO_UNROLL
	for (u64 n = 0; n < FRAGMENT_MORE; n++) {
		u64 left = f->left, bytes = left < piece ? left : piece, offset = f->offset + (piece >> 3), at = f->at;

		f->left = left - bytes;
		f->at = at + bytes;
		f->offset = offset;
		bytes = ((bytes - 1) & (FRAGMENT_REST - 1)) + 1;
		if (fragment_cut(ctx, l3, bytes, f->left ? offset | NTOHS(IP4_MORE_FRAGMENTS) : offset))
			break;
		if (ctx_store_new(ctx, l3 + IP_HLEN, rest + (at & (FRAGMENT_REST - 1)), bytes))
			break;
		if (!f->left)
			return out_send(ctx, CTX_DATA(ctx), CTX_END(ctx), &s->pk, nh);
		ctx_send_copy(ctx, NEXTHOP_IFINDEX(nh));
	}
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}

AI int fragment_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	volatile struct fragments *f;
	struct nexthop nh;
	u32 zero = 0;
	u8 *rest = map_lookup(MAPFD(lb_datagram), &zero);
	u64 l3, piece, left;

	if (!FRAGMENTS || !s || !rest)
		return LB_DROP;
	f = FRAGMENTS_OF(s);
	nh.macs = s->out_macs;
	nh.rest = s->out_rest;
	l3 = L3_OFF(&s->pk);
	if (s->pk.flags & PKT_HANDED_OVER) {
		l3 -= CTX_LEN(ctx);
		if (!ctx_untag(ctx))
			return LB_DROP;
		l3 = (l3 + CTX_LEN(ctx)) & L3_MASK; /* an inner tag was part of the frame */
	}
	piece = FRAGMENT_BYTES(s->answer_mtu);
	left = ((s->pk.l3_len - IP_HLEN - piece - 1) & (FRAGMENT_REST - 1)) + 1;
	f->at = 0;
	f->left = left;
	f->offset = fragment_offset(ctx, l3);
	if (ctx_load(ctx, l3 + IP_HLEN + piece, rest, left) || fragment_first(ctx, &nh, l3, piece, f->offset))
		return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	return fragment_rest(ctx, s, &nh, rest, l3, piece);
}
