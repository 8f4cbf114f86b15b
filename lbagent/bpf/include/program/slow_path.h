/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_SLOW_PATH: a packet to a frontend that the fast path leaves. Established flows that need a
 * decision (backend gone, SYN, expired, no next hop, too large, last hop), and new flows up to the selection of a backend.
 */
#pragma once
#include "fast_path.h"
#include "flow_select.h"
#include "former_leader.h"
#include "fragmentation.h"
#include "handshake.h"
#include "sctp_out.h"

/* A datagram that exceeds the MTU of its path: which side fragments it? */
AI int slow_path_too_large(lb_ctx *ctx, struct lb_scratch *s, u64 mtu, bool here)
{
	if (s->pk.flags & PKT_DF)
		return answer(ctx, s, REASON_ANSWER_TOO_BIG, mtu);
	if (here && !(s->pk.flags & PKT_EGRESS))
		return CONTINUE; /* translated, it goes up, and the stack fragments it on the way to the pod */
	if (!HOOK_SENDS_COPIES)
		return verdict(ctx, REASON_PASS_MTU, ctx_hand_over(ctx));
	return fragment_can(ctx, &s->pk, mtu) ? CONTINUE : answer(ctx, s, REASON_ANSWER_TOO_BIG, mtu);
}

AI int slow_path_limits(lb_ctx *ctx, struct lb_scratch *s, u64 meta, bool here)
{
	int rc = UNLIKELY(over_mtu(s->pk.l3_len, META_MTU(meta))) ? slow_path_too_large(ctx, s, META_MTU(meta), here) : CONTINUE;

	return rc == CONTINUE && !here && UNLIKELY(s->pk.ttl <= 1) ? answer(ctx, s, REASON_ANSWER_TTL, 0) : rc;
}

/* Delivers to this node itself. An outgoing request is received again by the same device. */
AI int send_local(lb_ctx *ctx, const struct lb_pkt *pk)
{
	return HOOK_HAS_EGRESS && pk->flags & PKT_EGRESS ? ctx_send_up(ctx) : LB_PASS;
}

/* The most specific reason: destination and kind of the packet take precedence over how its flow was found. */
AI u32 slow_path_reason(const struct lb_pkt *pk, bool here, u32 reason)
{
	if (UNLIKELY(pk->flags & PKT_LATER))
		return REASON_FWD_FRAGMENT;
	return here && (reason == REASON_FWD_ESTABLISHED || reason == REASON_FWD_NEW) ? REASON_FWD_LOCAL : reason;
}

/* Resolves the egress path of a packet to the backend of `path`, and stores it in `s`. Returns CONTINUE or a verdict, with nothing
 * else stored yet: another program processes from the start what XDP cannot send. */
AI int slow_path_resolve_egress(lb_ctx *ctx, struct lb_scratch *s, lb_path *path, u64 meta, u64 forward)
{
	bool here = forward_is_local(forward);
	lb_addr from = s->pk.saddr, to;
	struct nexthop nh = {};
	int out = OUT_STACK;

	/* a pod's outgoing request leaves by the pod's device: the stack rejects a received packet with the node's own source */
	if (!here || s->pk.flags & PKT_EGRESS) {
		if (forward == FORWARD_SNAT)
			path_snat(path, &from);
		path_addr(path, &to);
		out = out_find(ctx, META_NEXTHOP(meta), &from, &to, &nh);
		TRACE(NEXT_HOP, out, NEXTHOP_IFINDEX(&nh));
		if (out_is_for_tc(out))
			return out_hand_over(ctx);
		if (UNLIKELY(out == OUT_NONE || (out == OUT_STACK && !here)))
			return verdict(ctx, REASON_DROP_NO_NEIGHBOR, LB_DROP);
	}
	if (here)
		TRACE(NEXT_HOP, OUT_STACK, 0);
	s->out = out;
	s->here = here;
	s->out_macs = nh.macs;
	s->out_rest = nh.rest;
	return CONTINUE;
}

/* Records a packet that is forwarded, before it is translated. Returns the ring; NULL: none. `ids`: EVENT_IDS(). */
AI u64 *forward_event(lb_ctx *ctx, const struct lb_pkt *pk, u32 reason, u64 ids)
{
	u64 *ring = event_ring();

	if (!ring)
		return 0;
	event_fill(ctx, pk, ring, ids);
	event_publish(ring, reason);
	return ring;
}

/* Translates and sends a packet of a flow with this value, by the path that slow_path_resolve_egress() found. */
AI int slow_path_send(lb_ctx *ctx, struct lb_scratch *s, u64 value, u64 service, u32 reason, bool is_new)
{
	const struct nexthop nh = {s->out_macs, s->out_rest};
	int out = s->out, here = s->here;
	lb_path *path = path_of(value_backend(value));
	const struct lb_pkt *pk = &s->pk;
	u64 meta = PATH_META(path), len = CTX_LEN(ctx), *ring = 0, ids = 0;
	u8 *row = counters();
	struct lb_tuple to;

	reason = slow_path_reason(pk, here, reason);
	count_reason(row, reason, len);
	count_flow_in(row, service, value_backend(value) & CFG(path_mask), len);
	if (EVENTS && (is_new || SAMPLES)) {
		ids = EVENT_IDS(value_backend(value), service, value_is_snat(value) ? NTOHS(value_snat_port(value)) : 0);
		ids |= is_new ? 0 : 1ULL << EVENT_KNOWN_SHIFT;
		ring = forward_event(ctx, pk, reason, ids);
	}
	flow_tuple(pk, path, meta, value, &to);
	if (nat_write(ctx, CTX_DATA(ctx), CTX_END(ctx), pk, &to, !here))
		return LB_DROP;
	if (FRAMES_AFTER && ring)
		event_after(ctx, pk, ring, ids, reason, out == OUT_NEXTHOP ? NEXTHOP_IFINDEX(&nh) : 0, nh.macs, nh.rest);
	if (UNLIKELY(pk->proto == PROTO_SCTP))
		return sctp_go(ctx, s, out == OUT_NEXTHOP, META_MTU(meta));
	if (FRAGMENTS && out == OUT_NEXTHOP && UNLIKELY(over_mtu(pk->l3_len, META_MTU(meta))))
		return out_fragments(ctx, &nh, META_MTU(meta));
	return out == OUT_STACK ? send_local(ctx, pk) : out_go(ctx, pk, out, &nh);
}

/* Does this packet's flow need a new backend? A SYN opens a connection, so it may move; any other packet moves only when its
 * backend is gone. A flow that has expired, or may have, may have lost its SNAT port to another flow. */
AI bool slow_path_must_reselect(const struct ct_flow *f, const struct ct_key *key, const struct lb_pkt *pk, u64 meta, bool gone, u64 now)
{
	u64 syn = is_syn(pk), expired;

	if (gone || (syn && !META_IS(meta, PATH_SELECTABLE)))
		return true;
	expired = ct_flow_is_expired(f, l4_of(pk->proto), now);
	if (LIKELY(!(expired | ct_flow_age_in_doubt(f, now))))
		return false;
	return (syn & expired) | ct_flow_lost_snat(f, key);
}

/* The flow has moved because of its client's direct conversation with the backend (direct.h): it keeps the backend, from a SNAT
 * port. */
AI int slow_path_take_snat(lb_ctx *ctx, struct lb_scratch *s, const struct ct_flow *f, u64 meta)
{
	s->choice = CHOICE_RESELECT;
	s->old_value = f->value;
	s->version = f->version;
	s->backend = value_backend(f->value);
	s->backend_gen = META_GEN(meta);
	s->service = ct_flow_service(f);
	s->forward = FORWARD_SNAT;
	s->snat_port = 0;
	lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}

/* Does a health check open its connection from a port that it has used for another backend a moment ago? */
AI bool slow_path_is_other_check(lb_ctx *ctx, const struct lb_pkt *pk, u64 v)
{
	u64 checked = ctx_checked_backend(ctx, pk->flags & PKT_EGRESS);

	return is_syn(pk) && checked && checked != value_backend(v);
}

/* A flow beyond the rules of its Service is dropped, or its client gets an answer, which is counted under the same reason. */
AI int rules_refuse(lb_ctx *ctx, struct lb_scratch *s, const struct lb_rules *rules, u32 reason)
{
	s->backend = 0; /* it has none: verdict_event() */
	return RD32(&rules->flags) & RULES_REJECT ? answer(ctx, s, reason, 0) : verdict(ctx, reason, LB_DROP);
}

/* Does the packet make no new flow: one of a flow that lives, or a RST, which leaves none? */
AI bool rules_exempt(const struct lb_scratch *s)
{
	return s->pk.tcp_flags & TCP_RST || (s->choice == CHOICE_RESELECT && value_is_live(s->old_value));
}

/* May a flow whose backend was drawn begin? Returns 0 or a reason. */
AI u32 rules_admit(const struct lb_scratch *s, struct lb_rules *rules)
{
	bool exempt = rules_exempt(s);

	if (!exempt && rules_are_full(rules))
		return REASON_DROP_FLOW_LIMIT;
	TRACE(SELECT, s->backend, 0);
	return exempt || rules_rate_admits(rules) ? 0 : REASON_DROP_FLOW_RATE;
}

/* A SYN on the entry of a flow that has ended opens it again with its backend: for the rules it is a new flow. Returns 0 or a reason. */
AI u32 slow_path_reopen(const struct lb_scratch *s, u64 value)
{
	struct lb_rules *rules = rules_at(rules_number(s->service));

	if (!s->has_rules || !is_syn(&s->pk) || value_is_live(value))
		return 0;
	if (rules_are_full(rules) || backend_is_full(rules, value_backend(value)))
		return REASON_DROP_FLOW_LIMIT;
	return rules_rate_admits(rules) ? 0 : REASON_DROP_FLOW_RATE;
}

/* Returns CONTINUE if the flow needs a backend (choice is set), else the verdict. */
AI int slow_path_established(lb_ctx *ctx, struct lb_scratch *s, const struct ct_key *key, struct ct_flow *f, u64 now)
{
	struct lb_pkt *pk = &s->pk;
	u64 v = f->value;
	lb_path *path = path_of(value_backend(v));
	u64 meta = PATH_META(path);
	bool no_service = service_is_gone(ct_flow_service(f)), gone = no_service || !value_is_served(v, meta);
	u32 refused;
	int rc;

	TRACE(FLOW, TRACE_HIT | (u64)ct_flow_service(f) << 32, v);
	if (gone)
		TRACE(STALE, 0, 0);
	if (pkt_is_malformed(ctx, pk))
		return verdict(ctx, REASON_DROP_MALFORMED, LB_DROP);
	if (gone && pk->proto != PROTO_UDP && !is_syn(pk)) {
		if (ct_flow_service(f) == SERVICE_NONE)
			return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS); /* the pod itself answers */
		ct_flow_close(f, now);
		if (!(pk->tcp_flags & TCP_RST) || !value_knows_path(v, meta) || ct_flow_lost_snat(f, key))
			return answer(ctx, s, no_service ? REASON_REJECT_SERVICE_GONE : REASON_REJECT_BACKEND_GONE, 0);
		/* the client's RST informs a backend that still runs */
	} else if (slow_path_must_reselect(f, key, pk, meta, gone, now) || slow_path_is_other_check(ctx, pk, v)) {
		TRACE(STALE, 0, 0);
		s->choice = CHOICE_RESELECT;
		s->old_value = v;
		return CONTINUE;
	}
	if (UNLIKELY(value_awaits_snat(v)))
		return slow_path_take_snat(ctx, s, f, meta);
	refused = slow_path_reopen(s, v);
	if (UNLIKELY(refused))
		return rules_refuse(ctx, s, rules_at(rules_number(s->service)), refused);
	TRACE(PATH, value_backend(v), meta);
	rc = slow_path_limits(ctx, s, meta, flow_stays_here(v));
	if (rc == CONTINUE)
		rc = slow_path_resolve_egress(ctx, s, path, meta, value_forward(v));
	if (rc != CONTINUE)
		return rc;
	if (is_syn(pk))
		handshake_again(s->hash, value_backend(v));
	s->old_value = v;
	ct_refresh(f, key, pk, pkt_number(ctx, pk, TCP_ACK_SEQ), now, false);
	FENCE(s); /* load the value again, or the verifier follows each path through the states above separately */
	return slow_path_send(ctx, s, s->old_value, ct_flow_service(f), f->spilled ? REASON_FWD_SPILL : REASON_FWD_ESTABLISHED, false);
}

/* No frontend has this address and port. */
AI int slow_path_no_service(lb_ctx *ctx, struct lb_scratch *s, const struct lb_tuple5 *t)
{
	struct lb_service *wild = service_wildcard(t);
	u32 reason;

	if (s->choice == CHOICE_RESELECT) /* the frontend existed when the flow was made */
		return answer(ctx, s, REASON_REJECT_SERVICE_GONE, 0);
	TRACE(SERVICE, wild ? TRACE_WILDCARD : TRACE_MISS, 0);
	if (wild) {
		reason = service_routable(t, wild);
		if (reason)
			return verdict(ctx, reason, reason < REASON_REJECT_NO_BACKEND ? LB_PASS : LB_DROP);
		return answer(ctx, s, REASON_REJECT_UNDEFINED_PORT, 0);
	}
	if (prefilter_src(&s->pk.saddr)) /* the filter is lossy: it may still be a local backend's reply */
		lb_call(ctx, FAMILY_CALL(CALL_REPLY));
	if (direct_is_possible(ctx, &s->pk))
		lb_call(ctx, FAMILY_CALL(CALL_DIRECT));
	return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
}

/* Draws a backend for a flow of a Service with simple rules. Returns 0 if CALL_CHOOSE must choose one. */
AI u64 slow_path_draw(struct lb_scratch *s, const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key)
{
	struct lb_rules *rules = rules_at(rules_number(s->service));
	u64 first;

	if (!rules_are_simple(rules, svc))
		return 0;
	s->has_rules = RULES_DRAWN;
	first = choose_drawn(rules, t, svc, key, s->hash, true);
	FORGET(first, s->hash);
	return first;
}

/* Leaves the choice to CALL_CHOOSE, once it is known that there is no flow: keeps what that needs of the master entry. */
AI int slow_path_defer(struct lb_scratch *s, const struct lb_service *svc, const lb_key *key)
{
	s->rules_target = svc->target;
	s->rules_count = svc->count;
	s->rules_flags = svc->flags | svc->flags2 << 8;
	s->rules_scope = key->words[KEY_AT(scope) / 8] >> KEY_AT(scope) % 8 * 8;
	s->rules_port = key->words[KEY_AT(dport) / 8] >> KEY_AT(dport) % 8 * 8;
	s->rules_last_port = key->words[KEY_AT(last_port) / 8] >> KEY_AT(last_port) % 8 * 8;
	s->rules_scanned = 0;
	s->has_rules = RULES_CHOOSE;
	s->backend = 0;
	s->forward = FORWARD_LOCAL;
	return CONTINUE;
}

/* Finds the master entry for a packet, which fills `t` and the key of its slots. */
AI struct lb_service *slow_path_service(lb_ctx *ctx, struct lb_scratch *s, struct lb_tuple5 *t, lb_key *key)
{
	if (!HOOK_MARKS_SCOPE)
		s->pk.flags |= device_scope(CTX_IFINDEX(ctx));
	pkt_tuple5(&s->pk, t);
	if (pkt_is_forwarded(ctx, &s->pk))
		t->scope = SCOPE_FORWARDED;
	return service_lookup(t, key);
}

/* May the client use the frontend? Returns 0 or a reason. */
AI u32 slow_path_admits(const struct lb_tuple5 *t, const struct lb_service *svc)
{
	u32 reason = service_routable(t, svc);

	TRACE(SCOPE, t->scope, reason);
	if (!reason) {
		reason = service_source(t, svc);
		if (svc->flags & SVC_SOURCE_RANGE)
			TRACE(SOURCE_RANGE, reason, 0);
	}
	return reason;
}

/* A frontend has no backend for the packet. */
AI int slow_path_empty(lb_ctx *ctx, struct lb_scratch *s, const struct lb_service *svc)
{
	u32 reason = service_empty(svc);

	return reason == REASON_REJECT_NO_BACKEND ? answer(ctx, s, reason, 0) : verdict(ctx, reason, LB_DROP);
}

/* Selects a backend by the current service. Returns CONTINUE with the selection in `s`, or the verdict. */
AI int slow_path_select(lb_ctx *ctx, struct lb_scratch *s, const struct ct_key *flow, u64 now)
{
	struct selection chosen = {};
	struct lb_service *svc;
	struct lb_tuple5 t;
	struct lb_vip *vip;
	lb_key key;
	u32 reason;
	u64 checked, first, only;

	svc = slow_path_service(ctx, s, &t, &key);
	if (!svc)
		return slow_path_no_service(ctx, s, &t);
	TRACE(SERVICE, TRACE_HIT, NTOHS(svc->rev_nat_index));
	s->service = NTOHS(svc->rev_nat_index);
	if (pkt_is_malformed(ctx, &s->pk))
		return verdict(ctx, REASON_DROP_MALFORMED, LB_DROP);
	if (UNLIKELY(svc->flags2 & SVC2_L7) && SVC_PROXY_PORT(svc) && !ctx_checked_backend(ctx, s->pk.flags & PKT_EGRESS)) {
		lb_call(ctx, FAMILY_CALL(CALL_L7));
		return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	}
	vip = s->choice == CHOICE_NEW ? former_leader_of(ctx, &s->pk) : 0;
	if (vip)
		return former_leader_send(ctx, &s->pk, vip);
	if (s->choice == CHOICE_NEW && !flow_may_begin(&s->pk, flow))
		return verdict(ctx, REASON_PASS_NEW_FLOW, LB_PASS);
	reason = slow_path_admits(&t, svc);
	if (reason)
		return verdict(ctx, reason, reason < REASON_REJECT_NO_BACKEND ? LB_PASS : LB_DROP);
	if (UNLIKELY(s->pk.proto == PROTO_SCTP && s->sctp_refusal)) {
		reason = s->sctp_refusal;
		return reason == REASON_REJECT_SCTP_MULTIHOMING ? answer(ctx, s, reason, 0) : verdict(ctx, reason, LB_DROP);
	}
	if (UNLIKELY(svc->flags2 & SVC2_L7) && !SVC_PROXY_PORT(svc))
		return verdict(ctx, REASON_PASS_UNSUPPORTED, LB_PASS);
	checked = ctx_checked_backend(ctx, s->pk.flags & PKT_EGRESS);
	if (UNLIKELY(!svc->count) && !checked)
		return slow_path_empty(ctx, s, svc);
	if (UNLIKELY(!addr_valid_source(&s->pk.saddr)))
		return verdict(ctx, REASON_DROP_MALFORMED, LB_DROP);
	first = checked;
	only = checked ? ONLY_CHECKED : 0;
	if (UNLIKELY(SVC_RULES(svc)) && !checked) {
		first = slow_path_draw(s, &t, svc, &key);
		if (!first)
			return slow_path_defer(s, svc, &key);
		only = ONLY_DRAWN;
	} else if (LIKELY(!checked)) {
		first = select_preferred(&t, svc);
	}
	reason = select_backend(&t, svc, &key, flow, s->hash, now, first, only, 0, 0, &chosen);
	if (UNLIKELY(reason) && s->has_rules)
		return slow_path_defer(s, svc, &key);
	if (!s->has_rules) /* else it is selected when it is let in: rules_admit() */
		TRACE(SELECT, chosen.backend, reason);
	if (reason)
		return verdict(ctx, reason, LB_DROP);
	if (LIKELY(!checked))
		affinity_update(&t, svc, chosen.backend);
	s->backend = chosen.backend;
	s->backend_gen = META_GEN(chosen.meta);
	s->forward = chosen.forward;
	s->snat_port = 0;
	return CONTINUE;
}

/* A SYN most likely opens a flow, and uses the current service even if it does not: it selects first, so that the cache misses of
 * its bucket and of its SNAT slot overlap. Other packets look up their flow first. */
AI int slow_path_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct snat_view view;
	struct ct_key key;
	struct ct_flow f = {};
	u64 now = now_ticks();
	int rc;

	if (!s)
		return LB_DROP;
	if (s->pk.concern & CONCERN_SNAT && is_snat_port(s->pk.dport) && snat_find_slow(&s->pk, &view))
		lb_call(ctx, FAMILY_CALL(CALL_REPLY));
	s->hash = ct_key_make(&key, &s->pk.saddr, s->pk.sport, &s->pk.daddr, s->pk.dport, s->pk.proto);
	s->choice = CHOICE_NEW;
	s->has_rules = 0;
	if (is_syn(&s->pk) && !pkt_is_direct(&s->pk)) {
		rc = slow_path_select(ctx, s, &key, now);
		if (rc != CONTINUE)
			return rc;
		ct_prefetch(s->hash);
		if (EVENTS)
			event_prefetch();
		if (s->forward == FORWARD_SNAT)
			snat_prefetch(s->hash, s->backend, s->pk.dport);
	}
	if (ct_find_slow(s->hash, &key, now, &f)) {
		rc = slow_path_established(ctx, s, &key, &f, now);
		if (rc != CONTINUE)
			return rc;
	} else {
		TRACE(FLOW, TRACE_MISS, 0);
	}
	s->version = f.version;
	if (!is_syn(&s->pk) && !pkt_is_direct(&s->pk)) {
		rc = slow_path_select(ctx, s, &key, now);
		if (rc != CONTINUE)
			return rc;
	}
	if (UNLIKELY(s->has_rules == RULES_CHOOSE)) {
		lb_call(ctx, FAMILY_CALL(CALL_CHOOSE));
		return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	}
	if (UNLIKELY(s->has_rules)) {
		struct lb_rules *rules = rules_at(rules_number(s->service));
		u32 refused = rules_admit(s, rules);

		if (refused)
			return rules_refuse(ctx, s, rules, refused);
	}
	lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
