/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_DIRECT: a packet that a client sends to a local backend's own address. It passes untouched
 * and creates no state, unless its client port has a flow to this backend through a frontend, from the client's own address: the
 * backend could not tell the two conversations apart.
 *   UDP: the flow moves to a SNAT port, as the second one of two frontends does (flow_select.h).
 *   TCP: a living connection cannot change its port, so the direct one gets a SNAT port: it becomes a flow whose frontend is the backend
 *   itself (SERVICE_NONE). Its other packets are known by the mark of their client port (prefilter.h).
 */
#pragma once
#include "reply.h"

/* May another device have translated the packet already? Then it is a request of a frontend on its way up. */
AI bool direct_is_stacked(lb_ctx *ctx)
{
	u64 *device = device_find(CTX_IFINDEX(ctx));

	return device && DEVICE_FLAGS(device) & DEVICE_STACKED;
}

/* Turns the packet's tuple into that of its answer. */
AI void direct_turn(struct lb_pkt *pk)
{
	lb_addr addr = pk->saddr;
	u16 port = pk->sport;

	pk->saddr = pk->daddr;
	pk->sport = pk->dport;
	pk->daddr = addr;
	pk->dport = port;
}

/* Finds the flow whose reply `pk` would be, and its key. A process of this node has no second source address, so its flow is
 * treated as none. */
AI bool direct_find(const struct lb_pkt *pk, u64 now, struct ct_key *key, struct ct_flow *f, u64 *hash)
{
	struct reply_end end;
	lb_addr vip;
	u16 vip_port;

	reply_end_of(pk, &end);
	if (LIKELY(!reply_find(pk, &end, now, key, f, &vip, &vip_port)))
		return false;
	*hash = ct_key_make(key, &end.client, end.client_port, &vip, vip_port, pk->proto); /* a spilled flow was found by its reply entry */
	return !META_IS(PATH_META(path_of(value_backend(f->value))), PATH_HOST);
}

/* Moves the flow whose reply `pk` would be to a SNAT port. */
AI void direct_take_way(const struct lb_pkt *pk, u64 now)
{
	struct ct_flow reply = {}, f = {};
	struct ct_key key;
	u64 hash;

	if (direct_find(pk, now, &key, &reply, &hash) && ct_find_slow(hash, &key, now, &f) && value_shares_reply(f.value, reply.value))
		ct_flow_await_snat(&f, &key);
}

/* Is the backend of a flow with this value served? */
AI bool direct_is_served(u64 value)
{
	return value_is_served(value, PATH_META(path_of(value_backend(value))));
}

/* Returns the value of the flow that a SYN to a local backend collides with, 0: none. */
AI u64 direct_collision(struct lb_pkt *pk, u64 now)
{
	struct ct_flow f = {};
	struct ct_key key;
	u64 hash;
	bool found;

	direct_turn(pk);
	found = direct_find(pk, now, &key, &f, &hash);
	direct_turn(pk);
	/* a backend on another node: its replies could not be told apart where they leave to the client pod */
	found = found && !META_IS(PATH_META(path_of(value_backend(f.value))), PATH_KEEPS_POD);
	return found && direct_is_served(f.value) ? f.value : 0;
}

/* Has packets of this client port inspected for as long as its flow may live. */
AI void direct_set_mark(const struct lb_pkt *pk)
{
	u32 *mark = direct_mark(pk->sport), until = whole_ticks() + (is_syn(pk) ? CFG(timeout_new) : CFG(timeout_tcp)) + DIRECT_MARK_SPARE;

	if (RD32(mark) < until)
		WR32(mark, until);
}

/* The mark belonged to another port, or to a removed flow. */
AI void direct_forget_mark(const struct lb_pkt *pk)
{
	u32 *mark = direct_mark(pk->sport);

	if (RD32(mark) < (u32)whole_ticks())
		WR32(mark, 0);
}

/* A TCP segment. If it belongs to a flow, or must become one, the slow path does the rest with the selected backend. */
AI void direct_segment(lb_ctx *ctx, struct lb_scratch *s, u64 now)
{
	struct lb_pkt *pk = &s->pk;
	struct ct_flow f = {};
	struct ct_key key;
	u64 value = 0;

	if (pkt_is_malformed(ctx, pk))
		return;
	if (ct_find_slow(ct_key_make(&key, &pk->saddr, pk->sport, &pk->daddr, pk->dport, pk->proto), &key, now, &f))
		value = direct_is_served(f.value) ? f.value : 0;
	else
		direct_forget_mark(pk);
	if (!value && is_syn(pk))
		value = direct_collision(pk, now);
	if (!value)
		return;
	direct_set_mark(pk);
	pk->concern = CONCERN_DIRECT;
	s->backend = value_backend(value);
	s->backend_gen = META_GEN(PATH_META(path_of(s->backend)));
	s->service = SERVICE_NONE;
	s->forward = FORWARD_SNAT;
	s->snat_port = 0;
	lb_call(ctx, FAMILY_CALL(CALL_SLOW_PATH));
}

AI int direct_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	u64 now = now_ticks();

	if (!s || direct_is_stacked(ctx))
		return LB_PASS;
	if (s->pk.proto == PROTO_TCP) {
		direct_segment(ctx, s, now);
	} else if (s->pk.proto == PROTO_UDP) {
		direct_turn(&s->pk);
		direct_take_way(&s->pk, now);
	} else {
		return LB_PASS;
	}
	return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
}
