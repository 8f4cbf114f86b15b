/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the entry of a frame: filter, MAC, the quick parser, the two frequent cases, and the way to everybody else.
 */
#pragma once
#include "filter.h"
#include "known.h"

/* Hands a frame to a program that parses it from the start. */
AI int entry_call(lb_ctx *ctx, u16 flags, u64 slot)
{
#ifdef LB_HOOK_TC
	struct lb_scratch *s = scratch();

	if (!s)
		return LB_PASS;
	s->hook_flags = flags;
#endif
	lb_call(ctx, slot);
	return LB_PASS;
}

/* A frame that is not of this family: the other family's entry, VLAN tags, or nothing of ours. */
AI int entry_other(lb_ctx *ctx, const u8 *data, const u8 *end, u16 flags)
{
	u16 type;

	if (data + ETH_HLEN > end)
		return LB_PASS;
	type = *(u16 *)(data + 12);
#if LB_FAMILY == 4
	if (LIKELY(type == ETH_IP6)) /* nobody's packet is not worth a tail call; what leaves may be the node's own ICMP error */
		return flags & PKT_EGRESS || filter_frame6(data, end) ? entry_call(ctx, flags, SLOT_XDP6) : LB_PASS;
#endif
	return type == ETH_VLAN || type == ETH_QINQ ? entry_call(ctx, flags, SLOT_GENERAL) : LB_PASS;
}

/* A frame of this family that concerns us. */
AI int entry_known(lb_ctx *ctx, u8 *data, u8 *end, struct lb_pkt *pk)
{
	struct ct_key key;
	struct ct_flow flow;
	u64 hash, now = now_ticks();
	int rc;

	if (!(pk->concern & (CONCERN_VIP | CONCERN_SNAT)))
		return lb_call_with(ctx, pk, SLOT_REPLY);
	if (pk->concern & CONCERN_SNAT && snat_port(pk->dport)) {
		struct slot_view view;

		if (LIKELY(snat_find(pk, &view))) {
			rc = reply_quick(ctx, data, end, pk, &view, now);
			return LIKELY(rc >= 0) ? rc : lb_call_with(ctx, pk, SLOT_REPLY);
		}
	}
	hash = ct_key_make(&key, &pk->saddr, pk->sport, &pk->daddr, pk->dport, pk->proto);
	if (LIKELY(!is_syn(pk) && ct_find(hash, &key, now, &flow))) {
		rc = flow_quick(ctx, data, end, pk, &key, &flow, now);
		if (LIKELY(rc >= 0))
			return rc;
	}
	return lb_call_with(ctx, pk, SLOT_FLOW);
}

#ifdef LB_HOOK_XDP
#define hook_flags(ctx, flags) 0
#else
#define PACKET_HOST 0

/* Only frames for this node, and without a tag the device took off: those go up to their VLAN device. The headers must be linear. */
AI bool hook_ready(lb_ctx *ctx, u16 flags)
{
	u64 need = ETH_HLEN + IP_HLEN + TCP_HLEN, len = CTX_LEN(ctx);

	if (ctx->vlan_present || (ctx->pkt_type != PACKET_HOST && !(flags & PKT_EGRESS)))
		return false;
	if (UNLIKELY(CTX_DATA(ctx) + need > CTX_END(ctx)))
		skb_pull(ctx, len < need ? len : need);
	return true;
}

/* What the node itself sends has internal scope as well. */
AI u16 hook_flags(lb_ctx *ctx, u16 flags)
{
	return flags & PKT_EGRESS ? flags : device_scope(CTX_IFINDEX(ctx));
}
#endif

/* Neither address concerns us. Only on its way out an ICMP error may still: the node's own, about a packet for a local backend. */
AI int entry_nobody(lb_ctx *ctx, const u8 *data, u16 flags)
{
#ifdef LB_HOOK_TC
	u8 proto = data[ETH_HLEN + (LB_FAMILY == 4 ? 9 : 6)];

	if (flags & PKT_EGRESS && UNLIKELY(proto == PROTO_ICMP_FAMILY))
		return entry_call(ctx, flags, FAMILY_SLOT(SLOT_GENERAL));
#endif
	return LB_PASS;
}

/* `flags`: PKT_EGRESS (with PKT_INTERNAL) or 0. */
AI int entry(lb_ctx *ctx, u16 flags)
{
	u8 *data, *end;
	struct lb_pkt pk;

#ifdef LB_HOOK_TC
	if (!hook_ready(ctx, flags))
		return LB_PASS;
#endif
	data = CTX_DATA(ctx);
	end = CTX_END(ctx);
	if (UNLIKELY(parse_addrs(data, end, &pk) || (LB_FAMILY == 6 && data + ETH_HLEN + IP_HLEN + 4 > end)))
		return entry_other(ctx, data, end, flags);
#if LB_FAMILY == 6 && defined(LB_HOOK_XDP)
	pk.concern = CONCERN_VIP; /* xdp has asked: exactly which is asked again only where it matters */
	if (snat_port(*(u16 *)(data + ETH_HLEN + IP_HLEN + 2)))
#endif
	pk.concern = filter_dst(&pk.daddr);
	if (LIKELY(!pk.concern)) {
		if (LIKELY(!filter_src(&pk.saddr)))
			return entry_nobody(ctx, data, flags);
		pk.concern = CONCERN_SOURCE;
	}
#ifdef LB_HOOK_XDP
	if (UNLIKELY(!frame_is_ours(CTX_IFINDEX(ctx), data)))
		return LB_PASS;
#endif
	flags = hook_flags(ctx, flags);
	if (UNLIKELY(parse_quick(data, end, &pk) || pk.l3_len + ETH_HLEN > FRAME_LEN(ctx, data, end)))
		return entry_call(ctx, flags, FAMILY_SLOT(SLOT_GENERAL));
	pk.flags |= flags;
	pkt_whole(ctx, &pk);
	return entry_known(ctx, data, end, &pk);
}
