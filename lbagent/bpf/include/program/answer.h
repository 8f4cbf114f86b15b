/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the programs' own answers: TCP RST, ICMP port unreachable, too big, time exceeded (the program CALL_ANSWER), and ABORT
 * of SCTP (CALL_SCTP_ABORT, which it calls). Their source is the
 * packet's destination (the frontend), as if the service itself had answered, and they leave by the device that received the
 * packet.
 *
 * Input: scratch record with pk (nothing translated), answer = the reason, answer_mtu. At most CFG(reject_rate) answers per second
 * and CPU, with separate counts for rejections and path errors, so that a flood against a service without backends does not stop
 * PMTU discovery; packets beyond the limit are dropped. Never answered: group addresses, unspecified and loopback sources, later
 * fragments, RST, and what ends an association of SCTP. Callers never request an answer to an ICMP message.
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

/* Reads what an ABORT needs: for an INIT the tag that it has for its answers, for any other packet that packet's own tag, marked as such by
 * bit T (RFC 9260 §8.4). A SHUTDOWN ACK gets a SHUTDOWN COMPLETE. False: it must not be answered. */
AI bool answer_read_sctp(lb_ctx *ctx, const struct lb_pkt *pk, struct lb_answer *a)
{
	u8 *l4 = CTX_DATA(ctx) + L4_OFF(pk), *end = CTX_END(ctx), type;

	if (!answer_read(ctx, pk, false, a) || l4 + SCTP_MIN_HLEN > end)
		return false;
	type = l4[SCTP_HLEN];
	if (type == SCTP_ABORT || type == SCTP_SHUTDOWN_COMPLETE || type == SCTP_COOKIE_ACK || type == SCTP_ERROR)
		return false;
	a->sctp_chunk = (type == SCTP_SHUTDOWN_ACK ? SCTP_SHUTDOWN_COMPLETE : SCTP_ABORT) | HTONS(SCTP_CHUNK_HLEN) << 16;
	if (type != SCTP_INIT) {
		a->sctp_tag = *(u32 *)(l4 + SCTP_TAG);
		a->sctp_chunk |= SCTP_TAG_REFLECTED << 8 * SCTP_CHUNK_FLAGS;
		return true;
	}
	if (l4 + SCTP_INITIATE_TAG + sizeof(u32) > end)
		return false;
	a->sctp_tag = *(u32 *)(l4 + SCTP_INITIATE_TAG);
	return a->sctp_tag != 0;
}

AI bool answer_read_as(lb_ctx *ctx, const struct lb_pkt *pk, u64 rst, struct lb_answer *a, const bool sctp)
{
	return sctp ? answer_read_sctp(ctx, pk, a) : answer_read(ctx, pk, rst, a);
}

/* Makes the packet the answer `s->answer` and sends it back, or drops it. Where XDP cannot send it back, tc_after_xdp processes the packet
 * again, and answers. `sctp`, a constant: it becomes an ABORT. */
AI int answer_send(lb_ctx *ctx, const bool sctp)
{
	struct lb_scratch *s = scratch();
	struct lb_answer a = {};
	u32 zero = 0;
	u64 *buckets = map_lookup(MAPFD(lb_ratelimit), &zero);

	if (!s || !buckets)
		return LB_DROP;
	if (!out_takes_frames(CTX_IFINDEX(ctx)))
		return verdict(ctx, REASON_PASS_NEIGHBOR, ctx_hand_over(ctx));
	if (!sctp && s->pk.proto == PROTO_SCTP && s->answer != REASON_ANSWER_TOO_BIG && s->answer != REASON_ANSWER_TTL) {
		lb_call(ctx, FAMILY_CALL(CALL_SCTP_ABORT));
		return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	}
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
	if (answer_read_as(ctx, &s->pk, rst, &a, sctp) && rate_admits(buckets + (path & 1), CFG(reject_rate)) &&
	    (sctp ? answer_abort(ctx, &s->pk, &a) : rst ? answer_rst(ctx, &s->pk, &a) : answer_icmp(ctx, s, &a))) {
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

AI int answer_main(lb_ctx *ctx)
{
	return answer_send(ctx, false);
}

AI int sctp_abort_main(lb_ctx *ctx)
{
	return answer_send(ctx, true);
}
