/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_PARSE_FULL: the parser of the frames that are not plain: up to two VLAN tags, IPv4 options,
 * IPv6 extension headers (bounded), fragments, ICMP. It fills the record of parse.h and calls the same programs.
 */
#pragma once
#include "prefilter.h"
#include "fragment.h"
#include "icmp_quote.h"

#define VLAN_TAGS 2
#define EXTENSIONS 6    /* IPv6 extension headers stepped over */
#define EXTENSIONS_MAX 400 /* bytes of them; L4_MASK bounds the sum */
#define PARSE_FULL_PULL 512 /* bytes: what tc makes linear */

/* Steps over Ethernet and tags. Returns the offset of the IP header, 0 if this is not the family's packet. */
AI u64 parse_full_l2(lb_ctx *ctx, const u8 *data, const u8 *end)
{
	u64 at = ETH_TYPE;
	u16 type;

	if (data + ETH_HLEN + VLAN_TAGS * VLAN_HLEN > end)
		return data + ETH_HLEN <= end && *(u16 *)(data + ETH_TYPE) == ETH_FAMILY ? ETH_HLEN : 0;
	type = *(u16 *)(data + at);
#pragma unroll
	for (u64 n = 0; n < VLAN_TAGS; n++) {
		if (type != ETH_VLAN && type != ETH_QINQ)
			break;
		at += VLAN_HLEN;
		type = *(u16 *)(data + at);
	}
#if LB_FAMILY == 4
	if (type == ETH_IP6)
		lb_call(ctx, CALL_PARSE_FULL + 1);
#endif
	return type == ETH_FAMILY ? at + sizeof(type) : 0;
}

#if LB_FAMILY == 4
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_LOOSE_ROUTE 131
#define OPTION_STRICT_ROUTE 137
#define OPTIONS_MAX 40 /* bytes, and so options */

/* 1 if the options end here: at the last one, at a source route, at one that is malformed; else 0. No branch: the verifier would follow
 * the rest of the options once for each. */
AI u64 option_is_last(u64 kind, u64 nop, u64 size)
{
	u64 end = (kind - 1) >> 63, loose = ((kind ^ OPTION_LOOSE_ROUTE) - 1) >> 63, strict = ((kind ^ OPTION_STRICT_ROUTE) - 1) >> 63;

	return end | loose | strict | (SIGN(size - 2) & ~nop);
}

/* Does a source route have stops left? Then the destination is not the last one (RFC 791 §3.1). `step` is in a map, so its value is
 * unknown to the verifier, which does not verify the rest once for each chain of options. */
AI bool parse_full_source_route(const u8 *l3, const u8 *end, u64 size, volatile u16 *step)
{
	u64 kind = OPTION_END, has = 0, left = 0;

	*step = IP_HLEN;
	NO_UNROLL
	for (u64 n = 0; n < OPTIONS_MAX; n++) {
		u64 at = *step, nop;
		const u8 *option = l3 + (at & 63);

		if (at + 3 > size || option + 3 > end)
			break;
		kind = *option;
		has = option[1];
		left = option[2];
		OPAQUE(kind);
		OPAQUE(has);
		nop = ((kind ^ OPTION_NOP) - 1) >> 63;
		OPAQUE(nop);
		if (option_is_last(kind, nop, has))
			break;
		*step = at + has + (1 - has) * nop;
	}
	return (kind == OPTION_LOOSE_ROUTE || kind == OPTION_STRICT_ROUTE) && left <= has;
}

/* Returns the length of the header with its options, 0 if it is malformed. */
AI u64 parse_full_l3(const u8 *l3, const u8 *end, struct lb_pkt *pk, struct ip_info *info)
{
	u64 size = IP4_HEADER_BYTES(l3);
	u16 fragment = *(u16 *)(l3 + IP4_FRAGMENT);

	if (*l3 >> 4 != 4 || size < IP_HLEN)
		return 0;
	/* this comes first: the verifier follows the options once for each combination of values known before */
	info->unsupported = UNLIKELY(size > IP_HLEN) && parse_full_source_route(l3, end, size, &pk->l4_off);
	pk->proto = l3[IP4_PROTO];
	pk->ttl = l3[IP4_TTL];
	pk->l3_len = NTOHS(*(u16 *)(l3 + IP4_LEN));
	pk->flags |= fragment & IP4_DF ? PKT_DF : 0;
	info->more = fragment & IP4_MORE_FRAGMENTS;
	info->id = *(u16 *)(l3 + IP4_ID);
	if (fragment & IP4_FRAGMENT_OFFSET)
		pk->flags |= PKT_FRAGMENT | PKT_LATER;
	else if (info->more)
		pk->flags |= PKT_FRAGMENT;
	return size;
}
#else
AI u64 extension_size(u8 kind, const u8 *h)
{
	if (kind == NH_FRAGMENT)
		return EXT_MIN_HLEN;
	return kind == NH_AUTH ? (h[EXT_HLEN] + 2) * 4 : (h[EXT_HLEN] + 1) * 8;
}

AI void extension_fragment(const u8 *h, struct lb_pkt *pk, struct ip_info *info)
{
	u16 word = *(u16 *)(h + EXT_FRAGMENT);

	info->more = word & EXT_MORE_FRAGMENTS;
	info->id = *(u32 *)(h + EXT_FRAGMENT_ID);
	if (word & EXT_FRAGMENT_OFFSET)
		pk->flags |= PKT_FRAGMENT | PKT_LATER;
	else if (info->more)
		pk->flags |= PKT_FRAGMENT;
}

AI u64 parse_full_l3(const u8 *l3, const u8 *end, struct lb_pkt *pk, struct ip_info *info)
{
	u64 size = IP_HLEN;
	u8 next = l3[IP6_NEXT_HEADER];

	if (*l3 >> 4 != 6)
		return 0;
	pk->ttl = l3[IP6_HOP_LIMIT];
	pk->l3_len = NTOHS(*(u16 *)(l3 + IP6_PAYLOAD_LEN)) + IP_HLEN;
	pk->flags |= PKT_DF;
	NO_UNROLL
	for (u64 n = 0; n < EXTENSIONS; n++) {
		const u8 *h = l3 + size;

		if (!proto_is_extension(next))
			break;
		if (h + EXT_MIN_HLEN > end)
			return 0;
		if (next == NH_ROUTING && h[EXT_ROUTING_SEGMENTS_LEFT]) /* segments left: the destination is not the last one */
			info->unsupported = true;
		if (next == NH_FRAGMENT)
			extension_fragment(h, pk, info);
		size += extension_size(next, h);
		FORGET(size, *(u64 *)h);
		next = *h;
		if (size > IP_HLEN + EXTENSIONS_MAX)
			return 0;
		if (pk->flags & PKT_LATER)
			break; /* the middle of the payload follows */
	}
	pk->proto = next;
	return size;
}
#endif

/* Reads ports and flags of the L4 header. Returns false if the header is not complete. */
AI bool parse_full_l4(lb_ctx *ctx, const u8 *l4, const u8 *end, struct lb_pkt *pk)
{
	u64 size = l4_hlen(l4_of(pk->proto));

	if (l4 + L4_QUOTED_HLEN > end || pk->l3_len < L4_OFF(pk) - L3_OFF(pk) + size)
		return false;
	pk->sport = *(u16 *)(l4 + L4_SPORT);
	pk->dport = *(u16 *)(l4 + L4_DPORT);
	if (pk->proto == PROTO_TCP) {
		if (l4 + TCP_HLEN > end)
			return false;
		pk->tcp_flags = l4[TCP_FLAGS];
	}
	if (UNLIKELY(pk->proto == PROTO_SCTP && CTX_GSO_SIZE(ctx))) /* packets that its sender has fitted to its path, in one frame */
		pk->l3_len = L4_OFF(pk) - L3_OFF(pk) + SCTP_MIN_HLEN;
	else
		pkt_segment_len(ctx, l4, pk);
	return true;
}

/* Reads the whole packet into the record. Returns 0, or the reason why it is passed or dropped. */
AI u32 parse_full(lb_ctx *ctx, struct lb_pkt *pk, struct ip_info *info, u64 at)
{
	u8 *data = CTX_DATA(ctx), *end = CTX_END(ctx), *l3 = data + (at & L3_MASK), *l4;
	u64 size;

	if (l3 + IP_HLEN > end)
		return REASON_PASS_UNSUPPORTED;
	pk->flags |= at > ETH_HLEN ? PKT_TAGGED : 0;
	pk->sport = pk->dport = 0;
	pk->tcp_flags = 0;
	size = parse_full_l3(l3, end, pk, info);
	pk->l4_off = at + size;
	if (!size || info->unsupported || pk->l3_len < size || pk->l3_len + at > CTX_LEN(ctx))
		return REASON_PASS_UNSUPPORTED;
	if (proto_is_icmp(pk->proto))
		return 0;
	if (!l4_is_supported(pk->proto) || (pk->proto == PROTO_SCTP && pk->flags & PKT_FRAGMENT))
		return REASON_PASS_UNSUPPORTED; /* the first fragment of an SCTP packet has its checksum, but not its length */
	if (pk->flags & PKT_LATER) {
		if (frag_ports(pk, info))
			return 0;
		return frag_is_lost(pk) ? REASON_DROP_FRAGMENT : REASON_PASS_NOT_SERVICE;
	}
	l4 = data + L4_OFF(pk);
	if (!parse_full_l4(ctx, l4, end, pk))
		return REASON_PASS_UNSUPPORTED;
	if (pk->flags & PKT_FRAGMENT)
		frag_remember(pk, info);
	return 0;
}

/* Is it an ICMP error behind a plain header? The kernel's own errors on egress are. */
AI bool parse_full_icmp_error(const u8 *l3, const u8 *end)
{
	if (l3 + IP_HLEN + 1 > end || l3[IP_PROTO] != PROTO_ICMP_FAMILY)
		return false;
	return icmp_is_error(l3[IP_HLEN + ICMP_TYPE]);
}

/* Calls the program for a packet that is parsed. */
AI int parse_full_leave(lb_ctx *ctx, const struct lb_pkt *pk)
{
	if (pk->concern & CONCERN_VIP)
		lb_call(ctx, FAMILY_CALL(CALL_SLOW_PATH));
	else if (pk->concern & CONCERN_SOURCE)
		lb_call(ctx, FAMILY_CALL(CALL_REPLY));
	else
		lb_call(ctx, FAMILY_CALL(CALL_DIRECT));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}

AI int parse_full_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct ip_info info = {};
	u8 *data, *end, *l3;
	struct lb_pkt *pk;
	u32 reason;
	u64 at;

	if (!s)
		return LB_PASS;
	ctx_linearize(ctx, PARSE_FULL_PULL);
	if (HOOK_FLAGS(s) & PKT_HANDED_OVER)
		ctx_forget_hand_over(ctx);
	scratch_begin(s);
	pk = &s->pk;
	pk->l3_off = parse_full_l2(ctx, CTX_DATA(ctx), CTX_END(ctx));
	FENCE(pk); /* load all values again, or the verifier follows the rest once for each number of tags */
	at = pk->l3_off;
	data = CTX_DATA(ctx);
	end = CTX_END(ctx);
	l3 = data + (at & L3_MASK);
	if (!at || data + ETH_HLEN > end || l3 + IP_HLEN > end)
		return LB_PASS;
	pk->flags = HOOK_FLAGS(s);
	addr_load(&pk->saddr, l3 + IP_SADDR);
	addr_load(&pk->daddr, l3 + IP_DADDR);
	pk->concern = prefilter_dst(&pk->daddr);
	if (pk->concern == CONCERN_DIRECT && !direct_is_asked(ctx, l3, end, pk->flags))
		pk->concern = 0;
	pk->concern |= prefilter_src(&pk->saddr) ? CONCERN_SOURCE : 0;
	TRACE(PARSE, 0, 0);
	TRACE(FILTER, pk->concern, 0);
	if (!pk->concern && !(HOOK_FLAGS(s) & PKT_EGRESS && parse_full_icmp_error(l3, end)))
		return LB_PASS;
	if (HOOK_CHECKS_MAC && !frame_is_for_device(CTX_IFINDEX(ctx), data))
		return LB_PASS;
	reason = parse_full(ctx, pk, &info, at);
	if (reason)
		return verdict(ctx, reason, reason == REASON_DROP_FRAGMENT ? LB_DROP : LB_PASS);
	if (proto_is_icmp(pk->proto)) {
		if (pk->proto == PROTO_ICMP_FAMILY && !(pk->flags & PKT_FRAGMENT))
			lb_call(ctx, FAMILY_CALL(CALL_ICMP));
		return verdict(ctx, REASON_PASS_UNSUPPORTED, LB_PASS);
	}
	if (UNLIKELY(pk->proto == PROTO_SCTP)) {
		lb_call(ctx, FAMILY_CALL(CALL_SCTP_CHUNK));
		return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	}
	return parse_full_leave(ctx, pk);
}
