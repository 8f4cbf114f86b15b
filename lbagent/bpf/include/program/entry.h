/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the entry of a frame: prefilter, MAC address, the parser of plain frames, the two most frequent cases (a
 * packet of an established flow, a reply to a SNAT port), and the calls of the programs for all other frames.
 */
#pragma once
#include "prefilter.h"
#include "announce.h"
#include "fast_path.h"

/* Does this family's entry point look up the prefilter? The IPv4 one, which sees every frame first, does so for IPv6, too, except
 * for outgoing frames. */
#define ENTRY_PREFILTERS (LB_FAMILY == 4 || HOOK_HAS_EGRESS)

/* Passes a frame to a program that parses it from the start. */
AI int entry_call(lb_ctx *ctx, u16 flags, u64 slot)
{
	if (HOOK_MARKS_SCOPE) {
		struct lb_scratch *s = scratch();

		if (!s)
			return LB_PASS;
		s->hook_flags = flags;
	}
	lb_call(ctx, slot);
	return LB_PASS;
}

/* Returns the Ethernet type, 0 if the frame is too short. */
AI u16 frame_type(lb_ctx *ctx)
{
	u8 *data = CTX_DATA(ctx);

	return data + ETH_HLEN <= CTX_END(ctx) ? *(u16 *)(data + ETH_TYPE) : 0;
}

/* Continues with the IPv6 entry point of this program: a jump (bpf/compiler/join_entries.py). */
static void (*entry6)(void *ctx) = (void *)ENTRY6_CALL;

/* The flags of a frame. Packets of the node itself have internal scope, too. */
AI u16 entry_flags(lb_ctx *ctx, u16 flags)
{
	if (!HOOK_MARKS_SCOPE || flags & PKT_EGRESS)
		return flags;
	return device_scope(CTX_IFINDEX(ctx));
}

/* A frame that is not of this family, or too short for the parser of plain frames: VLAN tags and small
 * datagrams are for parse_full. */
AI int entry_not_plain(lb_ctx *ctx, const u8 *data, const u8 *end, u16 flags)
{
	u16 type;

	if (data + ETH_HLEN > end)
		return LB_PASS;
	type = *(u16 *)(data + ETH_TYPE);
	if (type == ETH_FAMILY)
		return entry_call(ctx, entry_flags(ctx, flags), FAMILY_CALL(CALL_PARSE_FULL));
	if (type == ETH_VLAN || type == ETH_QINQ)
		return entry_call(ctx, entry_flags(ctx, flags), CALL_PARSE_FULL);
	return announce_or_pass(ctx, flags);
}

/* Passes a plain frame to another program of this family. */
AI int entry_call_plain(lb_ctx *ctx, u64 concern, u16 flags, u64 slot)
{
	struct lb_scratch *s = scratch();
	u8 *data = CTX_DATA(ctx);

	if (s && data + PLAIN_HLEN <= CTX_END(ctx)) {
		scratch_begin(s);
		PKT_REPARSE(data, &s->pk);
		s->pk.concern = concern;
		s->pk.flags |= flags;
		pkt_segment_len(ctx, PLAIN_L4(data), &s->pk);
		lb_call(ctx, FAMILY_CALL(slot));
	}
	return LB_DROP;
}

/* A plain frame to a VIP or SNAT address, or from a local backend. Returns TO_SLOW_PATH or TO_REPLY if the program in that slot
 * must process it. */
#define TO_REPLY (-2)

AI int entry_established(lb_ctx *ctx, struct fast_path *q, u64 concern)
{
	struct snat_view view;
	struct lb_pkt pk;
	struct ct_key key;
	struct ct_flow flow;
	u64 hash;
	int rc;

	if (UNLIKELY(concern != CONCERN_VIP)) {
		if (concern == CONCERN_SOURCE)
			return TO_REPLY;
		PKT_REPARSE(q->data, &pk);
		if ((!ENTRY_PREFILTERS || is_snat_port(pk.dport)) && LIKELY(snat_find(&pk, &view, false))) { /* without the prefilter only SNAT ports reach this */
			rc = fast_path_reply(ctx, q, &view);
			return LIKELY(rc >= 0) ? rc : TO_REPLY;
		}
		if (EXTRA_SNAT_SOURCES) { /* the reply is written a second time here: a shared path would cost the first one some moves */
			PKT_REPARSE(q->data, &pk);
			if ((!ENTRY_PREFILTERS || is_snat_port(pk.dport)) && snat_find_extra(&pk, &view, false)) {
				rc = fast_path_reply(ctx, q, &view);
				return LIKELY(rc >= 0) ? rc : TO_REPLY;
			}
		}
	}
	PKT_REPARSE(q->data, &pk);
	hash = ct_key_make(&key, &pk.saddr, pk.sport, &pk.daddr, pk.dport, pk.proto);
	if (LIKELY(ct_find_frame(ct_bucket(hash), &key, q->data, &flow)))
		return fast_path_request(ctx, q, &flow, false);
	if (ct_second_in_use(ct_bucket(hash), q->now) && ct_find_frame(ct_bucket(hash >> 32), &key, q->data, &flow))
		return fast_path_request(ctx, q, &flow, true);
	return TO_SLOW_PATH;
}

/* Not a plain frame of TCP or UDP. */
AI int entry_leave_fast_path(lb_ctx *ctx, const struct lb_pkt *pk, u16 flags)
{
	if (pk->proto == PROTO_SCTP)
		return entry_call(ctx, flags, FAMILY_CALL(CALL_SCTP));
	return entry_call(ctx, flags, FAMILY_CALL(CALL_PARSE_FULL));
}

/* Neither address belongs to a service. An outgoing ICMP error may still concern one: the node's own error about a packet to a
 * local backend. */
AI int entry_not_service(lb_ctx *ctx, const u8 *data, u16 flags)
{
	if (flags & PKT_EGRESS && UNLIKELY(data[ETH_HLEN + IP_PROTO] == PROTO_ICMP_FAMILY))
		return entry_call(ctx, flags, FAMILY_CALL(CALL_PARSE_FULL));
	return LB_PASS;
}

/* Looks up the prefilter for an incoming IPv6 frame. Returns IS_CONCERN or a verdict. */
#define IS_CONCERN (-1)

AI int entry_prefilter6(lb_ctx *ctx, const u8 *data, const u8 *end)
{
	u64 concern = prefilter_dst6(data);

	TRACE(FILTER, concern | (prefilter_src6(data) ? CONCERN_SOURCE : 0), 0);
	if (LIKELY(!concern))
		return LIKELY(!prefilter_src6(data)) ? LB_PASS : IS_CONCERN;
	if (LIKELY(concern != CONCERN_DIRECT))
		return IS_CONCERN;
	if (direct_is_asked6(ctx, data + ETH_HLEN, end, 0))
		return entry_call(ctx, 0, CALL_PARSE_FULL + 1);
	return prefilter_src6(data) ? IS_CONCERN : LB_PASS;
}

/* Is it for direct.h? Where the IPv4 entry point checks IPv6, it has already passed those frames on: the others matched by their
 * source. */
AI bool entry_is_direct(lb_ctx *ctx, u64 concern, const u8 *l3, const u8 *end, u16 flags)
{
	return ENTRY_PREFILTERS && UNLIKELY(concern) && direct_is_asked(ctx, l3, end, flags);
}

/* `flags`: PKT_EGRESS (with PKT_INTERNAL) or 0. */
AI int entry(lb_ctx *ctx, u16 flags)
{
	struct lb_pkt pk;
	struct fast_path q;
	u64 concern;
	u8 *end;
	int rc;

	if (!ctx_ready(ctx, flags & PKT_EGRESS, PLAIN_HLEN))
		return LB_FAMILY == 4 ? announce_or_pass(ctx, flags) : LB_PASS;
	q.data = CTX_DATA(ctx);
	end = CTX_END(ctx);
	if (UNLIKELY(q.data + PLAIN_HLEN > end))
		return entry_not_plain(ctx, q.data, end, flags);
#if LB_FAMILY == 4
	if (UNLIKELY(*(u16 *)(q.data + ETH_TYPE) != ETH_IP4)) {
		if (*(u16 *)(q.data + ETH_TYPE) != ETH_IP6)
			return entry_not_plain(ctx, q.data, end, flags);
		if (HOOK_CHECKS_MAC && ANNOUNCES && UNLIKELY(*q.data & MAC_GROUP))
			return announce_or_pass(ctx, flags);
		if (!(flags & PKT_EGRESS)) { /* an outgoing frame may be the node's own ICMP error */
			rc = entry_prefilter6(ctx, q.data, end);
			if (rc != IS_CONCERN)
				return rc;
		}
		entry6(ctx);
		__builtin_unreachable();
	}
#endif
	addrs_load(q.data, &pk);
	concern = CONCERN_VIP; /* the IPv4 entry point has checked it; whether it was the SNAT address matters only for a SNAT port */
	if (ENTRY_PREFILTERS || is_snat_port(*(u16 *)(q.data + ETH_HLEN + IP_HLEN + L4_DPORT)))
		concern = prefilter_dst(&pk.daddr);
	if (ENTRY_PREFILTERS)
		TRACE(FILTER, concern | (prefilter_src(&pk.saddr) ? CONCERN_SOURCE : 0), 0);
	if (LIKELY(!(concern & CONCERN_VIP))) {
		if (entry_is_direct(ctx, concern, q.data + ETH_HLEN, end, flags))
			return entry_call(ctx, flags, FAMILY_CALL(CALL_PARSE_FULL));
		if (LIKELY(!prefilter_src(&pk.saddr)))
			return entry_not_service(ctx, q.data, flags);
		concern = CONCERN_SOURCE;
	}
	if (UNLIKELY(SAMPLES) && packet_is_sampled()) /* the slow path records it; here, where the fewest registers are in use */
		return entry_call(ctx, entry_flags(ctx, flags), FAMILY_CALL(CALL_PARSE_FULL));
	fast_path_begin(&q);
	q.sctp = false;
	q.ifindex = CTX_IFINDEX(ctx);
	q.flags = entry_flags(ctx, flags);
	if (HOOK_CHECKS_MAC && UNLIKELY(!frame_is_for_device(q.ifindex, q.data)))
		return LB_PASS;
	q.len = FRAME_LEN(ctx, q.data, end);
	PKT_REPARSE(q.data, &pk);
	rc = pkt_kind(q.data, q.len, &pk);
	if (UNLIKELY(rc == PKT_NOT_PLAIN))
		return entry_leave_fast_path(ctx, &pk, q.flags);
	if (UNLIKELY(rc == PKT_TCP_CONTROL))
		rc = concern == CONCERN_SOURCE ? TO_REPLY : TO_SLOW_PATH;
	else
		rc = entry_established(ctx, &q, concern);
	if (LIKELY(rc >= 0))
		return rc;
	return rc == TO_REPLY ? entry_call_plain(ctx, concern, q.flags, CALL_REPLY) : entry_call_plain(ctx, concern, q.flags, CALL_SLOW_PATH);
}
