/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the translation of ICMP errors about translated flows. The receiver must recognise its own packet: the quoted
 * addresses, ports and checksums, where present, become those that it sent. The outer source becomes the VIP if the backend itself
 * sent the error, else it stays. The quoted packet decides between three directions:
 *   a request as a remote backend received it (from a SNAT port) -> to the client;
 *   a reply as the client received it (from the VIP)             -> to the backend: PMTU discovery of downloads;
 *   a request that kept its client's address                -> stays on its way to the client.
 * Any other error passes untouched. An error is never answered and never keeps a flow alive.
 */
#pragma once
#include "announce.h"
#include "echo.h"
#include "former_leader.h"
#include "icmp_quote.h"
#include "reply.h"

/* Sends a rewritten error to the next hop `index`. */
AI int icmp_forward(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_quote *q, const struct lb_tuple *outer,
		    const struct lb_tuple *quoted, u64 index)
{
	struct nexthop nh = {};
	int out;

	if (pk->ttl <= 1)
		return verdict(ctx, REASON_PASS_TTL, LB_PASS);
	out = out_find(ctx, index, &pk->daddr, &outer->daddr, &nh);
	if (out_is_for_tc(out))
		return out_hand_over(ctx);
	if (out == OUT_NONE)
		return verdict(ctx, REASON_DROP_NO_NEIGHBOR, LB_DROP);
	count(REASON_FWD_ICMP, CTX_LEN(ctx));
	if (icmp_write(ctx, pk, q, outer, quoted, out != OUT_STACK))
		return LB_DROP;
	return out_go(ctx, pk, out, &nh);
}

/* Quotes a request to a remote backend from the SNAT port of `view`. */
AI int icmp_to_client(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_quote *q, const struct snat_view *view)
{
	struct lb_tuple outer, quoted;

	if (!view_frontend(view, q->pk.sport, &quoted.daddr, &quoted.dport))
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	quoted.saddr = view->client;
	quoted.sport = view->client_port;
	outer.saddr = addr_eq(&pk->saddr, &q->pk.saddr) ? quoted.daddr : pk->saddr;
	outer.daddr = view->client;
	return icmp_forward(ctx, pk, q, &outer, &quoted, snat_view_nexthop(view));
}

/* Quotes a reply that the client received from the VIP: for the backend of the flow with this value word. */
AI int icmp_to_backend(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_quote *q, u64 value)
{
	lb_path *path = path_of(value_backend(value));
	u64 meta = PATH_META(path);
	struct lb_tuple outer, quoted, request;

	if (!value_is_served(value, meta))
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	flow_tuple(&q->pk, path, meta, value, &request);
	quoted.saddr = request.daddr;
	quoted.sport = request.dport;
	quoted.daddr = request.saddr;
	quoted.dport = request.sport;
	outer.saddr = pk->saddr;
	outer.daddr = request.daddr;
	if (!flow_stays_here(value))
		return icmp_forward(ctx, pk, q, &outer, &quoted, META_NEXTHOP(meta));
	count(REASON_FWD_ICMP, CTX_LEN(ctx));
	return icmp_write(ctx, pk, q, &outer, &quoted, 0) ? LB_DROP : LB_PASS;
}

/* Quotes a request that a backend received from the client's own address. */
AI int icmp_of_local(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_quote *q, const lb_addr *vip, u16 vip_port)
{
	struct lb_tuple outer, quoted;

	quoted.saddr = q->pk.daddr;
	quoted.sport = q->pk.dport;
	quoted.daddr = *vip;
	quoted.dport = vip_port;
	outer.saddr = addr_eq(&pk->saddr, &q->pk.saddr) ? *vip : pk->saddr;
	outer.daddr = pk->daddr;
	count(REASON_FWD_ICMP, CTX_LEN(ctx));
	return icmp_write(ctx, pk, q, &outer, &quoted, 0) ? LB_DROP : LB_PASS;
}

/* An error about a request with its client's address may come from any router on the path, but one of the backend itself only from
 * where the backend is. */
AI bool icmp_is_believed(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_quote *q, u64 meta)
{
	return !addr_eq(&pk->saddr, &q->pk.saddr) || reply_is_from_home(ctx, pk, meta);
}

/* Quotes a packet of no flow here. The previous leader may have a connection of an announced address: it gets the error. Else the
 * packet may be one of an L7 proxy. */
AI int icmp_of_no_flow(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_quote *q)
{
	struct lb_vip *vip = q->pk.proto == PROTO_TCP ? former_leader_find(ctx, pk) : 0;
	u64 len = CTX_LEN(ctx), sum = 0;
	struct lb_tuple same;
	struct nexthop nh;
	int rc;

	if (!vip) {
		lb_call(ctx, FAMILY_CALL(CALL_L7));
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	}
	rc = former_leader_resolve_egress(ctx, pk, vip, &nh);
	if (rc != CONTINUE)
		return rc;
	tuple_of(pk, &same);
	if (!outer_write(ctx, pk, &same, 1, &sum))
		return LB_DROP;
	count(REASON_FWD_FORMER_LEADER, len);
	return out_go(ctx, pk, OUT_NEXTHOP, &nh);
}

/* The program CALL_ICMP. */
AI int icmp_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct snat_view view;
	struct ct_flow flow = {};
	struct reply_end end;
	struct ct_key key;
	u64 hash, meta, now = now_ticks();
	struct lb_quote *q;
	lb_addr vip;
	u16 vip_port;

	if (!s)
		return LB_PASS;
	q = QUOTE_OF(s);
	ctx_linearize(ctx, QUOTE_PULL);
	if (ECHO_REPLIES && echo_is_request(ctx, &s->pk))
		lb_call(ctx, FAMILY_CALL(CALL_ECHO));
	/* an error goes to the sender of the quoted packet; any other is forged or another node's */
	if (!quote_read(ctx, &s->pk, q) || !addr_eq(&s->pk.daddr, &q->pk.daddr)) {
		if (LB_FAMILY == 6 && ANNOUNCES && s->pk.ttl == NEIGHBOR_HOPS && !(s->pk.flags & (PKT_EGRESS | PKT_TAGGED)))
			lb_call(ctx, CALL_ANNOUNCE + 1);
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	}
	if (is_snat_port(q->pk.dport) && snat_find_slow(&q->pk, &view))
		return icmp_to_client(ctx, &s->pk, q, &view);
	hash = ct_key_make(&key, &q->pk.saddr, q->pk.sport, &q->pk.daddr, q->pk.dport, q->pk.proto);
	if (ct_find_slow(hash, &key, now, &flow) && !ct_flow_lost_snat(&flow, &key)) /* else the error would reach another flow's backend */
		return icmp_to_backend(ctx, &s->pk, q, flow.value);
	reply_end_of(&q->pk, &end);
	if (!reply_find(&q->pk, &end, now, &key, &flow, &vip, &vip_port))
		return icmp_of_no_flow(ctx, &s->pk, q);
	meta = PATH_META(path_of(value_backend(flow.value)));
	if (reply_is_for_egress(&s->pk, meta))
		return LB_PASS;
	if (icmp_is_believed(ctx, &s->pk, q, meta))
		return icmp_of_local(ctx, &s->pk, q, &vip, vip_port);
	return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
}
