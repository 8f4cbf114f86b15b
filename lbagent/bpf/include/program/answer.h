/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program's own answers: TCP RST, ICMP port unreachable, too big, time exceeded. Their source is the
 * packet's destination (the frontend), as if the service itself had answered, and they leave by the device that received the
 * packet.
 *
 * Input: scratch record with pk (nothing translated), answer = the reason, answer_mtu. At most CFG(reject_rate) answers per second
 * and CPU, with separate counts for rejections and path errors, so that a flood against a service without backends does not stop
 * PMTU discovery; packets beyond the limit are dropped. Never answered: group addresses, unspecified and loopback sources, later
 * fragments, RST. Callers never request an answer to an ICMP message.
 */
#pragma once
#include "answer_write.h"

/* Only a packet from and to a single host may be answered (RFC 1122 §3.2.2, RFC 4443 §2.4 e). */
AI bool answerable(const struct lb_pkt *pk)
{
	return addr_valid_source(&pk->saddr) && (u8)pk->daddr.w[0] < (LB_FAMILY == 4 ? 224 : 0xff);
}

/* Read the values that reshaping overwrites. False: cannot or must not be answered. */
AI bool answer_read(lb_ctx *ctx, const struct lb_pkt *pk, u64 rst, struct lb_answer *a)
{
	u8 *data = CTX_DATA(ctx), *end = CTX_END(ctx), *l4 = data + L4_OFF(pk);

	if (data + L2_COPY > end || pk->flags & PKT_LATER || !answerable(pk))
		return false;
	for (u64 i = 0; i < L2_COPY / 4; i++)
		a->l2[i] = *(u32 *)(data + i * 4);
	if (a->l2[0] & MAC_GROUP)
		return false;
	if (!rst)
		return true;
	if (l4 + TCP_HLEN > end || l4[TCP_FLAGS] & TCP_RST)
		return false;
	if (l4[TCP_FLAGS] & TCP_ACK) { /* <SEQ=SEG.ACK><CTL=RST>: RFC 9293 §3.10.7.1 */
		a->seq = *(u32 *)(l4 + TCP_ACK_SEQ);
		a->ack = 0;
		a->flags = TCP_RST;
		return true;
	}
	/* <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>; SYN and FIN count as one octet each (RFC 9293 §3.4) */
	u64 header = L4_OFF(pk) - L3_OFF(pk) + TCP_HEADER_BYTES(l4);
	u64 segment = pk->l3_len > header ? pk->l3_len - header : 0;

	segment += !!(l4[TCP_FLAGS] & TCP_SYN) + !!(l4[TCP_FLAGS] & TCP_FIN);
	a->seq = 0;
	a->ack = HTONL(HTONL(*(u32 *)(l4 + TCP_SEQ)) + segment);
	a->flags = TCP_RST | TCP_ACK;
	return true;
}

/* Begins the record of a refusal, before the frame becomes the answer. Returns whether there is one. */
AI bool answer_event(lb_ctx *ctx, const struct lb_scratch *s)
{
	u64 *ring = event_ring();

	if (!ring || !event_admitted(ring))
		return false;
	event_fill(ctx, &s->pk, ring, EVENT_IDS(s->backend & CFG(path_mask), s->service, 0));
	return true;
}

/* The answer program: the packet becomes the answer of s->answer and goes back, or is dropped. Where XDP cannot send it back,
 * tc_after_xdp processes the packet again, and answers. */
AI int answer_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct lb_answer a = {};
	u32 zero = 0;
	u64 *buckets = map_lookup(MAPFD(lb_ratelimit), &zero);

	if (!s || !buckets)
		return LB_DROP;
	if (!out_takes_frames(CTX_IFINDEX(ctx)))
		return verdict(ctx, REASON_PASS_NEIGHBOR, ctx_hand_over(ctx));
	u64 length = CTX_LEN(ctx);
	u64 path = s->answer == REASON_ANSWER_TOO_BIG || s->answer == REASON_ANSWER_TTL, rst = !path && s->pk.proto == PROTO_TCP;
	u64 recorded = 0, *ring;
	u32 reason = s->answer >= REASON_DROP_NO_BACKEND ? s->answer : REASON_DROP_NO_BACKEND; /* a limit has one name */
	int action = LB_DROP;

	FORGET(path, length);
	FORGET(rst, length);
	if (EVENTS) {
		recorded = answer_event(ctx, s);
		FORGET(recorded, length);
	}
	if (answer_read(ctx, &s->pk, rst, &a) && rate_admits(buckets + (path & 1), CFG(reject_rate)) &&
	    (rst ? answer_rst(ctx, &s->pk, &a) : answer_icmp(ctx, s, &a))) {
		reason = s->answer;
		action = ctx_send_back(ctx, s->pk.flags & PKT_EGRESS);
	}
	count_reason(counters(), reason, length);
	if (EVENTS && recorded) {
		ring = event_ring();
		if (ring)
			event_publish(ring, reason);
	}
	return action;
}
