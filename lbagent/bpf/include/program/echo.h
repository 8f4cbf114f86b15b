/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_ECHO: it answers a ping of an address of a service while one of its frontends takes new flows,
 * and drops it while none does. lb_echo holds for each such address what slot 0 says of the frontend that decides, for clients of
 * both scopes; an address without an entry (a NodePort's) is the stack's.
 *
 * The request becomes its answer in place: it keeps its length, payload, options and tags, and its checksum is changed by the
 * difference, so a wrong one stays wrong. Never answered: group, unspecified and loopback sources, addresses of services as source,
 * frames from or to a group; fragments do not come here. An answer is no request, so nothing loops. The answers count to
 * CFG(reject_rate), together with rejections.
 */
#pragma once
#include "answer.h"
#include "flow_select.h"
#include "icmp_quote.h"
#include "vip.h"

#define ECHO_REPLIES (CFG(flags) & CONFIG_ECHO_REPLY) /* --echo-reply, a constant for the verifier */

/* Is it an echo request to what may be an address of a service? */
AI bool echo_is_request(lb_ctx *ctx, const struct lb_pkt *pk)
{
	u8 *icmp;

	if (!(pk->concern & CONCERN_VIP) || L4_OFF(pk) - L3_OFF(pk) + ICMP_HLEN > pk->l3_len)
		return false;
	icmp = frame_at(ctx, L4_OFF(pk), ICMP_HLEN);
	return icmp && *(u16 *)icmp == ICMP_ECHO_REQUEST;
}

/* Returns what slot 0 says of the frontend that decides for clients of outside, and behind it of inside; NULL: the address is none of
 * a service, or the stack's. */
AI struct lb_service *echo_find(const lb_addr *address)
{
	struct lb_echo_key key;

	addr_map((u32 *)key.address, address);
	return map_lookup(MAPFD(lb_echo), &key);
}

/* 0: the sender may be answered. */
AI u32 echo_reason(const struct lb_pkt *pk, const struct lb_tuple5 *t, const struct lb_service *svc)
{
	u32 reason = service_routable(t, svc);

	TRACE(SCOPE, t->scope, reason);
	if (reason)
		return reason;
	reason = service_source(t, svc);
	if (svc->flags & SVC_SOURCE_RANGE)
		TRACE(SOURCE_RANGE, reason, 0);
	if (reason)
		return reason;
	if (UNLIKELY(svc->flags2 & SVC2_L7))
		return REASON_PASS_UNSUPPORTED;
	if (UNLIKELY(!answerable(pk) || echo_find(&pk->saddr)))
		return REASON_DROP_MALFORMED;
	return svc->count ? 0 : REASON_DROP_NO_BACKEND;
}

/* The request becomes its answer; true when it may be sent. */
AI bool echo_write(lb_ctx *ctx, const struct lb_pkt *pk)
{
	struct lb_tuple to = {.saddr = pk->daddr, .daddr = pk->saddr};
	u64 sum = word_diff(ICMP_ECHO_REQUEST, ICMP_ECHO_REPLY);
	u32 first, second, third, *macs = (u32 *)frame_at(ctx, 0, ETH_TYPE);
	u8 *icmp;

	if (!macs)
		return false;
	first = macs[0];
	second = macs[1];
	third = macs[2];
	if ((first | second >> 16) & MAC_GROUP)
		return false;
	macs[0] = second >> 16 | third << 16;
	macs[1] = third >> 16 | first << 16;
	macs[2] = first >> 16 | second << 16;
	if (!outer_write(ctx, pk, &to, pk->ttl - ANSWER_HOPS, &sum))
		return false;
	icmp = frame_at(ctx, L4_OFF(pk), ICMP_HLEN);
	if (!icmp)
		return false;
	*(u16 *)(icmp + ICMP_TYPE) = ICMP_ECHO_REPLY;
	*(u16 *)(icmp + ICMP_CSUM) = csum_apply(*(u16 *)(icmp + ICMP_CSUM), sum);
	return true;
}

/* Answers within the rate, and returns the verdict. */
AI int echo_answer(lb_ctx *ctx, struct lb_scratch *s, u64 *bucket)
{
	u64 length = CTX_LEN(ctx), *ring = EVENTS ? event_ring() : 0;
	u32 reason = REASON_DROP_NO_BACKEND;
	int action = LB_DROP;

	if (EVENTS && ring && !event_admitted(ring))
		ring = 0;
	if (EVENTS && ring) /* before the frame becomes the answer */
		event_fill(ctx, &s->pk, ring, EVENT_IDS(0, s->service, 0));
	TRACE(ANSWER, REASON_ANSWER_ECHO, 0);
	if (rate_admits(bucket, CFG(reject_rate)) && echo_write(ctx, &s->pk)) {
		reason = REASON_ANSWER_ECHO;
		action = ctx_send_back(ctx, s->pk.flags & PKT_EGRESS);
	}
	count_reason(counters(), reason, length);
	if (EVENTS && ring)
		event_publish(ring, reason);
	return action;
}

/* The program CALL_ECHO. Where XDP cannot send the answer back, tc_after_xdp gets the request. */
AI int echo_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct lb_service *svc;
	struct lb_tuple5 t;
	u32 zero = 0, reason;
	u64 *buckets = map_lookup(MAPFD(lb_ratelimit), &zero);

	if (!ECHO_REPLIES || !s || !buckets)
		return LB_PASS;
	svc = echo_find(&s->pk.daddr);
	if (!svc)
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	if (!HOOK_MARKS_SCOPE)
		s->pk.flags |= device_scope(CTX_IFINDEX(ctx));
	pkt_tuple5(&s->pk, &t);
	if (t.scope != SCOPE_EXTERNAL)
		svc++;
	s->service = NTOHS(svc->rev_nat_index);
	TRACE(SERVICE, TRACE_HIT, s->service);
	reason = echo_reason(&s->pk, &t, svc);
	if (reason)
		return verdict(ctx, reason, reason < REASON_REJECT_NO_BACKEND ? LB_PASS : LB_DROP);
	if (!out_takes_frames(CTX_IFINDEX(ctx)))
		return verdict(ctx, REASON_PASS_NEIGHBOR, ctx_hand_over(ctx));
	return echo_answer(ctx, s, buckets);
}
