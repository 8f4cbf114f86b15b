/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the entry of a frame: filter, MAC, the quick parser, the two frequent cases, and the way to everybody else.
 */
#pragma once
#include "filter.h"
#include "known.h"

/* A frame that is not of this family: the other family's entry, VLAN tags, or nothing of ours. */
AI int entry_other(lb_ctx *ctx, const u8 *data, const u8 *end, u16 flags)
{
	struct lb_scratch *s;
	u16 type;

	if (data + ETH_HLEN > end)
		return LB_PASS;
	type = *(u16 *)(data + 12);
	if (type != ETH_IP6 && type != ETH_VLAN && type != ETH_QINQ)
		return LB_PASS;
	s = scratch();
	if (!s)
		return LB_PASS;
	s->pk.flags = flags;
	lb_call(ctx, LB_FAMILY == 4 && type == ETH_IP6 ? SLOT_XDP6 : SLOT_GENERAL);
	return LB_PASS;
}

AI int entry_general(lb_ctx *ctx, u16 flags)
{
	struct lb_scratch *s = scratch();

	if (s) {
		s->pk.flags = flags;
		lb_call(ctx, FAMILY_SLOT(SLOT_GENERAL));
	}
	return LB_PASS;
}

/* A frame of this family that concerns us. */
AI int entry_known(lb_ctx *ctx, struct lb_pkt *pk)
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
			rc = reply_quick(ctx, pk, &view, now);
			return LIKELY(rc >= 0) ? rc : lb_call_with(ctx, pk, SLOT_REPLY);
		}
	}
	hash = ct_key_make(&key, &pk->saddr, pk->sport, &pk->daddr, pk->dport, pk->proto);
	if (is_syn(pk)) {
		ct_touch(hash); /* most likely a new flow: let the misses of its buckets overlap */
		return lb_call_with(ctx, pk, SLOT_FLOW);
	}
	if (LIKELY(ct_find(hash, &key, now, &flow))) {
		rc = flow_quick(ctx, pk, &key, &flow, now);
		if (LIKELY(rc >= 0))
			return rc;
	}
	return lb_call_with(ctx, pk, SLOT_FLOW);
}

/* `flags`: PKT_INTERNAL, PKT_EGRESS. */
AI int entry(lb_ctx *ctx, u16 flags)
{
	u8 *data = CTX_DATA(ctx), *end = CTX_END(ctx);
	struct lb_pkt pk;

	if (UNLIKELY(parse_addrs(data, end, &pk)))
		return entry_other(ctx, data, end, flags);
	pk.concern = filter_dst(&pk.daddr);
	if (LIKELY(!pk.concern)) {
		if (LIKELY(!filter_src(&pk.saddr)))
			return LB_PASS;
		pk.concern = CONCERN_SOURCE;
	}
#ifdef LB_HOOK_XDP
	if (UNLIKELY(!frame_is_ours(ctx, data)))
		return LB_PASS;
#endif
	if (UNLIKELY(parse_quick(data, end, &pk) || pk.l3_len + ETH_HLEN > CTX_LEN(ctx)))
		return entry_general(ctx, flags);
	pk.flags |= flags;
	return entry_known(ctx, &pk);
}
