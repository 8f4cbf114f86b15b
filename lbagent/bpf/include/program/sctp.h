/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains three programs for SCTP. The others process its packets as those of TCP, of which they have the flags.
 *   CALL_SCTP: a plain frame. If it is of an established flow, or a reply to a SNAT port, and its first chunk changes no flow, it is
 *   translated and sent here, as the entry point does with TCP; else CALL_PARSE_FULL follows.
 *   CALL_SCTP_CHUNK, called by CALL_PARSE_FULL: what the first chunk does to a flow.
 *   CALL_SCTP_SUM: a packet that the slow path or CALL_REPLY has translated gets its checksum and leaves.
 */
#pragma once
#include "entry.h"
#include "fragmentation.h"
#include "parse_full.h"
#include "slow_path.h"

#define SCTP_CHUNK_BIT(type) (1ULL << (type))
#define SCTP_OPENS_OR_CLOSES \
	(SCTP_CHUNK_BIT(SCTP_INIT) | SCTP_CHUNK_BIT(SCTP_INIT_ACK) | SCTP_CHUNK_BIT(SCTP_ABORT) | SCTP_CHUNK_BIT(SCTP_SHUTDOWN_COMPLETE))
#define SCTP_INIT_PARAMS 24 /* of an INIT that is read; eleven kinds are defined, and addresses */
#define SCTP_INIT_PULL 1500 /* bytes: what tc makes linear of an INIT */

/* Is the frame plain: no options, no fragment, with a chunk that leaves its flow as it is? */
AI bool sctp_is_plain(const u8 *data, u64 frame_len, const struct lb_pkt *pk)
{
	const u8 *l3 = data + ETH_HLEN;
	u64 type = PLAIN_L4(data)[SCTP_HLEN];

#if LB_FAMILY == 4
	if (*l3 != IP4_VERSION_HLEN || *(u16 *)(l3 + IP4_FRAGMENT) & (IP4_MORE_FRAGMENTS | IP4_FRAGMENT_OFFSET))
		return false;
#else
	if (*l3 >> 4 != 6)
		return false;
#endif
	if (pk->proto != PROTO_SCTP || (u64)pk->l3_len + ETH_HLEN > frame_len || pk->l3_len < IP_HLEN + SCTP_MIN_HLEN)
		return false;
	return type > SCTP_SHUTDOWN_COMPLETE || !(SCTP_OPENS_OR_CLOSES >> type & 1);
}

/* The program CALL_SCTP. */
AI int sctp_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct fast_path q;
	struct lb_pkt pk;
	u64 concern;
	u8 *end;
	int rc;

	if (!s)
		return LB_PASS;
	q.data = CTX_DATA(ctx);
	end = CTX_END(ctx);
	if (q.data + PLAIN_HLEN > end)
		goto leave;
	addrs_load(q.data, &pk);
	concern = prefilter_dst(&pk.daddr);
	if (!(concern & CONCERN_VIP) || CTX_GSO_SIZE(ctx))
		goto leave;
	fast_path_begin(&q);
	q.sctp = true;
	q.ifindex = CTX_IFINDEX(ctx);
	q.flags = HOOK_FLAGS(s);
	q.len = FRAME_LEN(ctx, q.data, end);
	PKT_REPARSE(q.data, &pk);
	if (UNLIKELY(!sctp_is_plain(q.data, q.len, &pk)))
		goto leave;
	rc = entry_established(ctx, &q, concern);
	if (LIKELY(rc >= 0))
		return rc;
leave:
	lb_call(ctx, FAMILY_CALL(CALL_PARSE_FULL));
	return LB_PASS;
}

/* Returns the flags of TCP that mean the same for a flow as this chunk, the first one of its packet. */
AI u8 sctp_flags(u8 type)
{
	switch (type) {
	case SCTP_INIT:
		return TCP_SYN;
	case SCTP_INIT_ACK:
		return TCP_SYN | TCP_ACK;
	case SCTP_COOKIE_ECHO:
		return TCP_ACK;
	case SCTP_ABORT:
	case SCTP_SHUTDOWN_COMPLETE:
		return TCP_RST;
	default: /* only of an association */
		return TCP_ACK | TCP_PSH;
	}
}

/* Is the address of a parameter another one than the source of its INIT? One of the other family is. */
AI bool sctp_lists_another(const u8 *param, const u8 *end, u16 type, const lb_addr *source)
{
	lb_addr address;

	if (type == SCTP_PARAM_HOST_NAME || type == (LB_FAMILY == 4 ? SCTP_PARAM_IP6 : SCTP_PARAM_IP4))
		return true;
	if (type != (LB_FAMILY == 4 ? SCTP_PARAM_IP4 : SCTP_PARAM_IP6) || param + SCTP_PARAM_HLEN + sizeof(address) > end)
		return false;
	addr_load(&address, param + SCTP_PARAM_HLEN);
	return !addr_eq(&address, source);
}

/* Returns why an INIT opens no flow: its parameters list another address than its source, which would reach its client past this node
 * and its backend past the frontend. 0: it may. `place` is in a map, so its value is unknown to the verifier, which does not verify the rest
 * once for each chain of parameters. */
AI u32 sctp_init_refusal(lb_ctx *ctx, const struct lb_pkt *pk, volatile u32 *place)
{
	u8 *chunk = CTX_DATA(ctx) + L4_OFF(pk) + SCTP_HLEN, *end = CTX_END(ctx);
	u64 room = pk->l3_len - (L4_OFF(pk) - L3_OFF(pk)) - SCTP_HLEN, length;

	if (chunk + SCTP_INIT_HLEN > end)
		return REASON_DROP_MALFORMED;
	length = NTOHS(*(u16 *)(chunk + SCTP_CHUNK_LEN));
	if (length < SCTP_INIT_HLEN || length > room || !*(u32 *)(chunk + SCTP_CHUNK_HLEN)) /* without a tag (RFC 9260 §3.3.2) */
		return REASON_DROP_MALFORMED;
	*place = SCTP_INIT_HLEN;
	NO_UNROLL
	for (u64 n = 0; n < SCTP_INIT_PARAMS; n++) {
		u64 at = *place, size;
		const u8 *param = chunk + (at & 0x7ff);

		if (at + SCTP_PARAM_HLEN > length)
			return 0;
		if (param + SCTP_PARAM_HLEN > end)
			return REASON_DROP_MALFORMED;
		if (sctp_lists_another(param, end, *(u16 *)param, &pk->saddr))
			return REASON_REJECT_SCTP_MULTIHOMING;
		size = NTOHS(*(u16 *)(param + SCTP_PARAM_LEN));
		if (size < SCTP_PARAM_HLEN || at + size > 0x7f8)
			return REASON_DROP_MALFORMED;
		*place = at + ((size + 3) & ~3ULL);
	}
	return REASON_DROP_MALFORMED;
}

/* The program CALL_SCTP_CHUNK. */
AI int sctp_chunk_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct lb_pkt *pk;
	u8 *l4, *end, type;

	if (!s)
		return LB_DROP;
	pk = &s->pk;
	ctx_linearize(ctx, SCTP_INIT_PULL);
	l4 = CTX_DATA(ctx) + L4_OFF(pk);
	end = CTX_END(ctx);
	if (l4 + SCTP_MIN_HLEN > end || pk->l3_len < L4_OFF(pk) - L3_OFF(pk) + SCTP_MIN_HLEN)
		return verdict(ctx, REASON_PASS_UNSUPPORTED, LB_PASS);
	type = l4[SCTP_HLEN];
	pk->tcp_flags = sctp_flags(type);
	pk->sctp_tag = *(u32 *)(l4 + SCTP_TAG);
	if (type == SCTP_INIT_ACK && l4 + SCTP_INITIATE_TAG + sizeof(u32) <= end)
		pk->sctp_tag = *(u32 *)(l4 + SCTP_INITIATE_TAG) - 1; /* reply_number() adds 1, as the number of a SYN counts */
	s->sctp_refusal = type == SCTP_INIT ? sctp_init_refusal(ctx, pk, &s->answer_mtu) : REASON_DROP_SCTP_UNKNOWN;
	return parse_full_leave(ctx, pk);
}

/* The program CALL_SCTP_SUM. */
AI int sctp_sum_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct lb_tuple to = {};
	struct nexthop nh;
	u32 field, fixed;
	int out;
	u8 *l4;

	if (!s)
		return LB_DROP;
	l4 = CTX_DATA(ctx) + L4_OFF(&s->pk);
	if (l4 + SCTP_HLEN > CTX_END(ctx))
		return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	to.sport = *(u16 *)(l4 + L4_SPORT);
	to.dport = *(u16 *)(l4 + L4_DPORT);
	field = *(u32 *)(l4 + SCTP_CSUM);
	fixed = nat_crc32c(field, &s->pk, &to);
	if (HOOK_KERNEL_CSUM) {
		if (ctx_store_new(ctx, L4_OFF(&s->pk) + SCTP_CSUM, &fixed, sizeof(fixed)))
			return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	} else {
		*(u32 *)(l4 + SCTP_CSUM) = fixed;
	}
	nh.macs = s->out_macs;
	nh.rest = s->out_rest;
	out = s->out;
	if (FRAGMENTS && s->answer_mtu && UNLIKELY(over_mtu(s->pk.l3_len, s->answer_mtu)))
		return out_fragments(ctx, &nh, s->answer_mtu);
	return out == OUT_STACK && s->here ? send_local(ctx, &s->pk) : out_go(ctx, &s->pk, out, &nh);
}
