/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_REPLY: replies of backends in every case that the fast path leaves. A SNAT port's slot holds
 * client and service; the flow of a local backend, or of a removed service, is found by its client. The next hop to the client is
 * learned here.
 */
#pragma once
#include "flow_create.h"
#include "prefilter.h"
#include "sctp_out.h"

/* Resolves the path of a reply to its client, by next-hop record `index` if there is one. On tc_egress the kernel has already
 * routed it. */
AI int reply_out(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_tuple *to, u64 index, struct nexthop *nh)
{
	int out = pk->flags & PKT_EGRESS ? OUT_STACK : out_find(ctx, index, &to->saddr, &to->daddr, nh);

	TRACE(NEXT_HOP, out, NEXTHOP_IFINDEX(nh));
	return out;
}

/* Sends a translated reply by the path that reply_out() found. */
AI int reply_send(lb_ctx *ctx, struct lb_scratch *s, const struct lb_tuple *to, int out, const struct nexthop *nh, u64 *learned,
		  u64 service, u64 backend)
{
	struct lb_pkt *pk = &s->pk;
	u64 len = CTX_LEN(ctx), mtu = 0, cut = false, *ring = 0, ids = 0;
	u8 *row;

	if (!(pk->flags & PKT_EGRESS)) {
		if (UNLIKELY(out == OUT_NONE))
			return verdict(ctx, REASON_DROP_NO_NEIGHBOR, LB_DROP);
		if (UNLIKELY(out != OUT_STACK && pk->ttl <= 1)) /* the stack would send a RST for a reply to a SNAT port */
			return pk->concern & CONCERN_SNAT ? answer(ctx, s, REASON_ANSWER_TTL, 0) : verdict(ctx, REASON_PASS_TTL, LB_PASS);
		/* XDP cannot use a path of tc_after_xdp */
		*learned = out == OUT_NEXTHOP && !(pk->flags & PKT_HANDED_OVER) ? nexthop_index(nh) : 0;
		mtu = out == OUT_STACK ? 0 : reply_mtu(pk, nh);
		if (UNLIKELY(over_mtu(pk->l3_len, mtu))) {
			if (pk->flags & PKT_DF)
				return answer(ctx, s, REASON_ANSWER_TOO_BIG, mtu);
			cut = out == OUT_NEXTHOP && fragment_can(ctx, pk, mtu);
			if (!cut && prefilter_dst(&to->saddr) & CONCERN_SNAT) /* from the node's own address: the stack would reject it */
				return HOOK_SENDS_COPIES ? answer(ctx, s, REASON_ANSWER_TOO_BIG, mtu) : verdict(ctx, REASON_PASS_MTU, ctx_hand_over(ctx));
			if (!cut)
				out = OUT_STACK; /* translated, it goes up, and the stack fragments it */
		}
	}
	FORGET(out, len);
	FORGET(cut, len);
	row = counters();
	count_reason(row, REASON_FWD_REPLY, len);
	count_flow_in(row, service, backend & CFG(path_mask), len);
	if (SAMPLES) {
		ids = EVENT_IDS(backend & CFG(path_mask), service & 0xffff, pk->concern & CONCERN_SNAT ? NTOHS(pk->dport) : 0) | 1ULL << EVENT_KNOWN_SHIFT;
		ring = forward_event(ctx, pk, REASON_FWD_REPLY, ids);
	}
	if (nat_write(ctx, CTX_DATA(ctx), CTX_END(ctx), pk, to, out != OUT_STACK))
		return LB_DROP;
	if (FRAMES_AFTER && ring)
		event_after(ctx, pk, ring, ids, REASON_FWD_REPLY, out == OUT_NEXTHOP ? NEXTHOP_IFINDEX(nh) : 0, nh->macs, nh->rest);
	if (UNLIKELY(pk->proto == PROTO_SCTP)) {
		s->out = out;
		s->here = false;
		s->out_macs = nh->macs;
		s->out_rest = nh->rest;
		return sctp_go(ctx, s, cut, mtu);
	}
	return FRAGMENTS && cut ? out_fragments(ctx, nh, mtu) : out_go(ctx, pk, out, nh);
}

/* Returns the number that acknowledges this segment of a backend if it is its SYN (RFC 9293 §3.4). */
AI u64 reply_number(lb_ctx *ctx, const struct lb_pkt *pk)
{
	return pkt_number(ctx, pk, TCP_SEQ) + 1;
}

/* Records in the flow's entry that its backend answers. Returns the flow's new value; 0 if it has no entry, or no longer sends from
 * this port: then the packet is from another backend, or of an earlier connection. */
AI u64 reply_refresh(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_tuple *to, const struct snat_view *view, u64 now)
{
	struct ct_key key;
	struct ct_flow f;
	u64 hash = ct_key_make(&key, &to->daddr, to->dport, &to->saddr, to->sport, pk->proto);

	if (!ct_find_slow(hash, &key, now, &f))
		return 0;
	if (value_snat_port(f.value) != pk->dport || value_backend(f.value) != snat_view_backend(view))
		return 0;
	handshake_end(hash, pk, value_backend(f.value));
	return ct_refresh(&f, &key, pk, reply_number(ctx, pk), now, true);
}

/* The client's end of a reply. */
struct reply_end {
	lb_addr client;
	__be16 client_port;
	u64 snat_port; /* the reply's destination, network order; 0: the client itself */
};

/* Did a packet from a backend that sees its clients' addresses come from that backend? Any sender may forge the address. The node's
 * own processes are trusted; a forwarded packet must have been received by a --pod-device, or by the device that leads to the
 * backend. A remote backend's reply to a pod is accepted on any device, like one to a SNAT port: return paths may differ. */
AI bool reply_is_from_home(lb_ctx *ctx, const struct lb_pkt *pk, u64 meta)
{
	u64 device = CTX_CAME_BY(ctx, pk->flags & PKT_EGRESS);

	if (META_IS(meta, PATH_KEEPS_POD))
		return !STRICT_SOURCE || fib_leads_by(ctx, device, &pk->daddr, &pk->saddr);
	if (!device || META_IS(meta, PATH_HOST))
		return !device;
	return device_scope(device) || fib_leads_by(ctx, device, &pk->daddr, &pk->saddr);
}

/* Does tc_egress translate the reply, where it leaves to the client? The stack sees the connection of a pod that kept its address
 * as one with the backend itself: it routes both directions, and conntrack sees both, untranslated. */
AI bool reply_is_for_egress(const struct lb_pkt *pk, u64 meta)
{
	return !(pk->flags & PKT_EGRESS) && META_IS(meta, PATH_KEEPS_POD);
}

/* --strict-source: was a reply to a SNAT port received by the device of the backend's route? A next hop is checked before the FIB. */
AI bool reply_is_by_route(lb_ctx *ctx, const struct lb_pkt *pk, const struct snat_view *view)
{
	u64 device = CTX_IFINDEX(ctx);

	return reply_is_by_nexthop(view, device) || fib_leads_by(ctx, device, &pk->daddr, &pk->saddr);
}

/* By the SNAT slot alone: it holds client and service. */
AI int reply_snat(lb_ctx *ctx, struct lb_scratch *s, const struct snat_view *view, struct lb_tuple *to, u64 now)
{
	u64 learned = 0, value;
	struct nexthop nh = {};
	int out, rc;

	to->daddr = view->client;
	to->dport = view->client_port;
	out = reply_out(ctx, &s->pk, to, snat_view_nexthop(view), &nh);
	if (out_is_for_tc(out))
		return out_hand_over(ctx);
	s->out = out;
	s->old_value = reply_refresh(ctx, &s->pk, to, view, now);
	FENCE(s); /* load both again, or the verifier follows each path through the states above separately */
	value = s->old_value;
	out = s->out;
	if (!value && s->pk.tcp_flags & TCP_RST) /* the backend refused a handshake that has no entry */
		snat_view_free(view);
	rc = reply_send(ctx, s, to, out, &nh, &learned, snat_view_service(view), snat_view_backend(view));
	snat_view_refresh(view, value, l4_of(s->pk.proto), now, learned);
	return rc;
}

AI u64 reply_find_in(u64 hash, const struct lb_pkt *pk, u16 snat_port, u64 now, struct ct_key *key, u64 found, struct ct_flow *f,
		     lb_addr *vip, u16 *vip_port)
{
	u64 *bucket = ct_bucket(hash);

	found = ct_find_reply(bucket, false, key, pk, snat_port, now, found, f, vip, vip_port);
	if (found == REPLY_OF_SERVED || !ct_second_in_use(bucket, now))
		return found;
	return ct_find_reply(ct_bucket(hash >> 32), true, key, pk, snat_port, now, found, f, vip, vip_port);
}

/* In the old table during a move, and again in the new one, where the flow may be by now. */
AI u64 reply_find_moving(u64 hash, const struct lb_pkt *pk, u16 snat_port, u64 now, struct ct_key *key, u64 found, struct ct_flow *f,
			 lb_addr *vip, u16 *vip_port)
{
	NO_UNROLL
	for (u64 n = 0; n < 2 && found != REPLY_OF_SERVED; n++)
		found = ct_find_reply(ct_old_bucket(hash >> 32 * n), false, key, pk, snat_port, now, found, f, vip, vip_port);
	return found == REPLY_OF_SERVED ? found : reply_find_in(hash, pk, snat_port, now, key, found, f, vip, vip_port);
}

/* Finds the flow of a reply, and the frontend of its connection; `key`: the key that matched. */
AI bool reply_find(const struct lb_pkt *pk, const struct reply_end *end, u64 now, struct ct_key *key, struct ct_flow *f, lb_addr *vip,
		   u16 *vip_port)
{
	u64 hash = ct_key_make(key, &end->client, end->client_port, &pk->saddr, pk->sport, pk->proto), found;

	f->hash = hash;
	ct_flow_in(f, hash);
	found = reply_find_in(hash, pk, end->snat_port, now, key, REPLY_UNKNOWN, f, vip, vip_port);
	if (MIGRATING_FLOWS && found != REPLY_OF_SERVED)
		found = reply_find_moving(hash, pk, end->snat_port, now, key, found, f, vip, vip_port);
	if (found != REPLY_UNKNOWN)
		return true;
	ct_key_mark_reply(key);
	return ct_find_spilled(key, now, f) && service_frontend_slow(ct_flow_service(f), pk->sport, vip, vip_port);
}

/* By the client's flow: a local backend's reply, and one to a SNAT port of a removed service. */
AI int reply_by_flow(lb_ctx *ctx, struct lb_scratch *s, const struct reply_end *end, u64 now)
{
	struct lb_pkt *pk = &s->pk;
	struct lb_tuple to;
	struct ct_key key;
	struct ct_flow f = {};
	struct nexthop nh = {};
	u64 learned = 0, snat_port = end->snat_port, index, value, meta;
	int out, rc;

	to.daddr = end->client;
	to.dport = end->client_port;
	if (!reply_find(pk, end, now, &key, &f, &to.saddr, &to.sport)) {
		TRACE(FLOW, TRACE_MISS, 0);
		if (direct_is_possible(ctx, pk))
			lb_call(ctx, FAMILY_CALL(CALL_DIRECT));
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	}
	TRACE(FLOW, TRACE_HIT | (u64)ct_flow_service(&f) << 32, f.value);
	meta = PATH_META(path_of(value_backend(f.value)));
	if (!snat_port) {
		if (reply_is_for_egress(pk, meta))
			return LB_PASS;
		if (UNLIKELY(!reply_is_from_home(ctx, pk, meta)))
			return verdict(ctx, REASON_PASS_FOREIGN_SOURCE, LB_PASS);
	}
	FORGET(snat_port, f.value);
	if (direct_was_translated(ctx, pk))
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	if (UNLIKELY(reply_opens_another(pk, f.value))) {
		if (ct_flow_set(&f, value_of_no_backend(f.value)) && !f.spilled)
			flow_turned(ct_flow_service(&f), f.value, 0);
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	}
	if (reply_is_of_another(pk, snat_port, &f, meta)) { /* the client's next SYN is sent from a SNAT port */
		ct_flow_set(&f, value_awaiting_snat(f.value));
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	}
	index = ct_flow_nexthop(&f);
	out = reply_out(ctx, pk, &to, index, &nh);
	if (out_is_for_tc(out))
		return out_hand_over(ctx);
	s->out = out;
	handshake_end(f.hash, pk, value_backend(f.value));
	s->old_value = ct_refresh(&f, &key, pk, reply_number(ctx, pk), now, true);
	FENCE(s); /* load both again, or the verifier follows each path through the states above separately */
	value = s->old_value;
	out = s->out;
	rc = reply_send(ctx, s, &to, out, &nh, &learned, ct_flow_service(&f), value_backend(f.value));
	if (learned && learned != index && !value_is_opening(value))
		ct_flow_learn_nexthop(&f, learned); /* no other flow takes the entry of an established one */
	return rc;
}

AI void reply_end_of(const struct lb_pkt *pk, struct reply_end *end)
{
	end->client = pk->daddr;
	end->client_port = pk->dport;
	end->snat_port = 0;
}

AI int reply_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	u64 now = now_ticks();
	struct snat_view view;
	struct reply_end end;
	struct lb_tuple to;

	if (!s)
		return LB_DROP;
	reply_end_of(&s->pk, &end);
	if (s->pk.concern & CONCERN_SNAT && is_snat_port(s->pk.dport) && snat_find_slow(&s->pk, &view)) {
		TRACE(SNAT_SLOT, TRACE_HIT, snat_view_backend(&view) | snat_view_service(&view) << 32);
		if (STRICT_SOURCE && !reply_is_by_route(ctx, &s->pk, &view))
			return verdict(ctx, REASON_DROP_FOREIGN_SOURCE, LB_DROP);
		if (view_frontend(&view, s->pk.sport, &to.saddr, &to.sport))
			return reply_snat(ctx, s, &view, &to, now);
		end.client = view.client;
		end.client_port = view.client_port;
		end.snat_port = s->pk.dport;
	}
	FORGET(end.snat_port, now);
	return reply_by_flow(ctx, s, &end, now);
}
