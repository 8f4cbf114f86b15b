/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program at CALL_CHOOSE: a new flow of a Service with rules (flow_rules.h) gets its backend, or is refused.
 * The slow path has found the service, that the client may use it, and that no flow is there yet: a known flow, repeated SYNs
 * included, never comes here while its backend is there. A flow that only changes its backend is not limited.
 */
#pragma once
#include "slow_path.h"

/* Does the packet make no new flow: one of a flow that lives, or a RST, which leaves none? */
AI bool choose_is_exempt(const struct lb_scratch *s)
{
	return s->pk.tcp_flags & TCP_RST || (s->choice == CHOICE_RESELECT && value_is_live(s->old_value));
}

/* What the slow path has kept of the master entry, and the key of its slots. */
AI void choose_service(const struct lb_scratch *s, const struct lb_tuple5 *t, struct lb_service *svc, lb_key *key)
{
	svc->target = s->rules_target;
	svc->count = s->rules_count;
	svc->rev_nat_index = HTONS(s->service);
	svc->flags = s->rules_flags;
	svc->flags2 = s->rules_flags >> 8;
	svc->qcount = 0;
	service_key(t, t->frontend_port, t->proto, key);
	key_set(key, KEY_AT(scope), 0xff, s->rules_scope);
}

AI int choose_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct selection chosen = {};
	struct lb_rules *rules;
	struct lb_service svc;
	struct lb_tuple5 t;
	struct ct_key flow;
	bool exempt;
	lb_key key;
	u64 first;
	u32 reason;

	if (!s)
		return LB_DROP;
	rules = rules_at(rules_number(s->service));
	pkt_tuple5(&s->pk, &t);
	choose_service(s, &t, &svc, &key);
	exempt = choose_is_exempt(s);
	if (!exempt && rules_are_full(rules))
		return rules_refuse(ctx, s, rules, REASON_DROP_FLOW_LIMIT);
	if (!s->rules_scanned) {
		first = choose_drawn(rules, &t, &svc, &key, s->hash);
	} else {
		first = choose_scanned(rules, &svc, &key, s->rules_from);
		s->rules_from += RULES_SCAN;
		if (s->rules_from >= svc.count)
			s->rules_from -= svc.count;
	}
	if (!first && svc.count) {
		if (!s->rules_scanned)
			s->rules_from = select_random(&t, s->hash ^ jiffies(), svc.count);
		if (s->rules_scanned++ < RULES_SCANS && (s->rules_scanned - 1) * RULES_SCAN < svc.count)
			lb_call(ctx, FAMILY_CALL(CALL_CHOOSE));
		if (!exempt)
			return rules_refuse(ctx, s, rules, REASON_DROP_FLOW_LIMIT);
	}
	FORGET(first, s->hash);
	ct_key_make(&flow, &s->pk.saddr, s->pk.sport, &s->pk.daddr, s->pk.dport, s->pk.proto);
	reason = select_backend(&t, &svc, &key, &flow, s->hash, now_ticks(), 0, exempt ? 0 : rules, first, &chosen);
	TRACE(SELECT, chosen.backend, reason);
	if (reason)
		return verdict(ctx, reason, LB_DROP);
	if (chosen.forward == FORWARD_SNAT)
		snat_prefetch(s->hash, chosen.backend);
	if (!exempt && !rules_rate_admits(rules))
		return rules_refuse(ctx, s, rules, REASON_DROP_FLOW_RATE);
	affinity_update(&t, &svc, chosen.backend);
	s->backend = chosen.backend;
	s->backend_gen = META_GEN(chosen.meta);
	s->forward = chosen.forward;
	s->snat_port = 0;
	lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
