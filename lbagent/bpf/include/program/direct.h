/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_DIRECT: a datagram that a client sends to a local backend itself. It passes untouched and no
 * flow is made of it. But where its client port has a flow to this backend through a frontend, from the client's own address, the backend's
 * answers could not be told apart: that flow makes way and goes on from a SNAT port, as the second one of two frontends does
 * (flow_select.h). From then on what the backend sends to the client port is of the direct conversation.
 */
#pragma once
#include "reply.h"

/* May another device have translated the packet already? Then it is a frontend's request on its way up. */
AI bool direct_is_stacked(lb_ctx *ctx)
{
	u64 *device = device_find(CTX_IFINDEX(ctx));

	return device && DEVICE_FLAGS(device) & DEVICE_STACKED;
}

/* Makes of the packet what would answer it. */
AI void direct_turn(struct lb_pkt *pk)
{
	lb_addr addr = pk->saddr;
	u16 port = pk->sport;

	pk->saddr = pk->daddr;
	pk->sport = pk->dport;
	pk->daddr = addr;
	pk->dport = port;
}

/* The flow whose reply `pk` would be makes way. A process of this node has no other address to be asked from: its flow stays. */
AI void direct_take_way(const struct lb_pkt *pk, u64 now)
{
	struct ct_flow reply = {}, f = {};
	struct reply_end end;
	struct ct_key key;
	lb_addr vip;
	u16 vip_port;
	u64 hash;

	reply_end_of(pk, &end);
	if (LIKELY(!reply_find(pk, &end, now, &key, &reply, &vip, &vip_port)))
		return;
	if (META_IS(PATH_META(path_of(value_backend(reply.value))), PATH_HOST))
		return;
	hash = ct_key_make(&key, &end.client, end.client_port, &vip, vip_port, pk->proto); /* of a spilled flow it was the reply row */
	if (ct_find_slow(hash, &key, now, &f) && value_shares_reply(f.value, reply.value))
		ct_flow_await_snat(&f, &key);
}

AI int direct_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();

	if (!s || s->pk.proto != PROTO_UDP || direct_is_stacked(ctx) || !ctx_comes_first(ctx, s->pk.flags & PKT_EGRESS))
		return LB_PASS; /* what leaves may be a frontend's request, translated where it came in */
	direct_turn(&s->pk);
	direct_take_way(&s->pk, now_ticks());
	return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
}
