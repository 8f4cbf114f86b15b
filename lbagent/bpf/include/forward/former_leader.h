/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains how connections survive the move of an announced address to this node: a segment in the middle of a connection
 * for which this node has no flow is forwarded unchanged to the previous leader, by the device that received it. That node has the
 * flow, and its replies do not pass through this node.
 *
 * lb_former_leader holds, for each address and device, the MAC address of the previous leader and the end of the entry: the agent
 * extends it while that node is alive. The TTL is decremented, so that a loop between two nodes that take each other for the
 * previous leader ends.
 */
#pragma once
#include "flow_select.h"
#include "fwd.h"
#include "vip.h"

AI bool former_leader_has_mac(lb_ctx *ctx, const struct lb_vip *vip)
{
	const u16 *to = (const u16 *)CTX_DATA(ctx), *mac = (const u16 *)vip->mac;

	return (const u8 *)to + ETH_HLEN <= CTX_END(ctx) && to[0] == mac[0] && to[1] == mac[1] && to[2] == mac[2];
}

/* Returns the previous leader for the destination of a packet; NULL: only this node is responsible. A tagged frame belongs to
 * another link. On egress only a frame that a program has already sent to that leader counts: tc sees it again. */
AI struct lb_vip *former_leader_find(lb_ctx *ctx, const struct lb_pkt *pk)
{
	struct lb_vip *vip;

	if (!ANNOUNCES || pk->flags & (PKT_TAGGED | PKT_FRAGMENT))
		return 0;
	vip = vip_find(MAPFD(lb_former_leader), CTX_IFINDEX(ctx), &pk->daddr);
	return vip && (!(pk->flags & PKT_EGRESS) || former_leader_has_mac(ctx, vip)) ? vip : 0;
}

/* Only a TCP segment shows that it is not the first one. */
AI struct lb_vip *former_leader_of(lb_ctx *ctx, const struct lb_pkt *pk)
{
	return pk->proto == PROTO_TCP && !is_syn(pk) ? former_leader_find(ctx, pk) : 0;
}

/* Finds the path to the previous leader: the device that received the frame, with that device's MAC address. Returns CONTINUE or a
 * verdict; nothing is written yet. */
AI int former_leader_resolve_egress(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_vip *vip, struct nexthop *nh)
{
	const u16 *own = (const u16 *)CTX_DATA(ctx), *mac = (const u16 *)vip->mac;

	if (pk->flags & PKT_EGRESS)
		return LB_PASS;
	if (pk->ttl <= 1)
		return verdict(ctx, REASON_PASS_TTL, LB_PASS);
	if (!out_takes_frames(CTX_IFINDEX(ctx)))
		return out_hand_over(ctx);
	if ((const u8 *)own + ETH_HLEN > CTX_END(ctx))
		return LB_DROP;
	nh->macs = mac[0] | (u64)mac[1] << 16 | (u64)mac[2] << 32 | (u64)own[0] << 48;
	nh->rest = own[1] | (u64)own[2] << 16 | CTX_IFINDEX(ctx) << 32;
	return CONTINUE;
}

/* Forwards a segment. */
AI int former_leader_send(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_vip *vip)
{
	struct nexthop nh;
	struct lb_tuple same;
	u64 len = CTX_LEN(ctx);
	int rc = former_leader_resolve_egress(ctx, pk, vip, &nh);

	if (rc != CONTINUE)
		return rc;
	tuple_of(pk, &same);
	if (nat_write(ctx, CTX_DATA(ctx), CTX_END(ctx), pk, &same, 1))
		return LB_DROP;
	count(REASON_FWD_FORMER_LEADER, len);
	return out_go(ctx, pk, OUT_NEXTHOP, &nh);
}
