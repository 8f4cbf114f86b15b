/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program at CALL_CHOOSE: a new flow of a Service with rules (flow_rules.h) gets its backend, or is refused,
 * where the slow path could not draw one: with affinity, Maglev, weights or a slow start, and where those that it drew are full.
 * The slow path has found the service, that the client may use it, and that no flow is there yet: a known flow, repeated SYNs
 * included, never comes here while its backend is there. A flow that only changes its backend is not limited.
 */
#pragma once
#include "slow_path.h"

/* What the slow path has kept of the master entry, and the key of its slots. */
AI void choose_service(const struct lb_scratch *s, const struct lb_tuple5 *t, struct lb_service *svc, lb_key *key)
{
	svc->target = s->rules_target;
	svc->count = s->rules_count;
	svc->rev_nat_index = HTONS(s->service);
	svc->flags = s->rules_flags;
	svc->flags2 = s->rules_flags >> 8;
	svc->qcount = 0;
	service_key(t, s->rules_port, t->proto, key);
	key_set(key, KEY_AT(last_port), 0xffff, s->rules_last_port);
	key_set(key, KEY_AT(scope), 0xff, s->rules_scope);
}

/* Is no place left among the slots that were searched? Then the next ones are searched by another run of this program, if there are
 * any. */
AI bool choose_again(struct lb_scratch *s, const struct lb_tuple5 *t, const struct lb_service *svc)
{
	u64 searched = s->rules_scanned * RULES_SCAN;

	if (!s->rules_scanned)
		s->rules_from = select_random(t, s->hash ^ jiffies(), svc->count);
	return s->rules_scanned++ < RULES_SCANS && searched < svc->count;
}

/* The first candidate: the client's backend or that of the Maglev table, if it is not full, else one that is drawn, else one that is
 * found by searching. It is the flow's if it is alive. 0: there is none that is not full. */
AI u64 choose_first(struct lb_scratch *s, const struct lb_rules *rules, const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key)
{
	u64 first;

	if (LIKELY(!s->rules_scanned)) {
		first = select_preferred(t, svc);
		FORGET(first, s->hash);
		s->rules_preferred = first;
		if (backend_is_full(rules, first) | (first - 1) >> 63)
			first = choose_drawn(rules, t, svc, key, s->hash, false);
	} else {
		first = choose_scanned(rules, svc, key, s->rules_from);
		s->rules_from += RULES_SCAN;
		if (s->rules_from >= svc->count)
			s->rules_from -= svc->count;
	}
	FORGET(first, s->hash);
	return first;
}

/* Refuses the flow, or drops it where there is no backend for it. */
AI int choose_refuse(lb_ctx *ctx, struct lb_scratch *s, const struct lb_rules *rules, u32 reason)
{
	if (reason == REASON_DROP_FLOW_LIMIT || reason == REASON_DROP_FLOW_RATE)
		return rules_refuse(ctx, s, rules, reason);
	return verdict(ctx, reason, LB_DROP);
}

AI int choose_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct selection chosen = {};
	struct lb_rules *rules;
	struct lb_service svc;
	struct lb_tuple5 t;
	struct ct_key flow;
	u64 limited, first;
	u32 reason;
	lb_key key;

	if (!s)
		return LB_DROP;
	rules = rules_at(rules_number(s->service));
	pkt_tuple5(&s->pk, &t);
	choose_service(s, &t, &svc, &key);
	limited = !rules_exempt(s);
	FORGET(limited, s->hash);
	limited &= 1;
	reason = REASON_DROP_FLOW_LIMIT;
	if (limited & rules_are_full(rules))
		goto refuse;
	first = choose_first(s, rules, &t, &svc, &key);
	if (UNLIKELY(!first)) {
		if (choose_again(s, &t, &svc))
			lb_call(ctx, FAMILY_CALL(CALL_CHOOSE));
		if (limited)
			goto refuse;
		first = s->rules_preferred;
	}
	FORGET(limited, s->hash);
	FORGET(first, s->hash);
	ct_key_make(&flow, &s->pk.saddr, s->pk.sport, &s->pk.daddr, s->pk.dport, s->pk.proto);
	reason = select_backend(&t, &svc, &key, &flow, s->hash, now_ticks(), first, 0, rules, limited, &chosen);
	TRACE(SELECT, chosen.backend, reason);
	if (reason)
		goto refuse;
	if (chosen.forward == FORWARD_SNAT)
		snat_prefetch(s->hash, chosen.backend, s->pk.dport);
	reason = REASON_DROP_FLOW_RATE;
	if (limited && !rules_rate_admits(rules))
		goto refuse;
	affinity_update(&t, &svc, chosen.backend);
	s->backend = chosen.backend;
	s->backend_gen = META_GEN(chosen.meta);
	s->forward = chosen.forward;
	s->snat_port = 0;
	lb_call(ctx, FAMILY_CALL(CALL_FLOW_CREATE));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
refuse:
	return choose_refuse(ctx, s, rules, reason);
}
