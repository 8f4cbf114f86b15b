/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the record of a parsed packet and the parser of plain frames: Ethernet, an IP header without options or
 * extension headers, no fragment, TCP or UDP. Any other frame is for parse_full.h, which fills the same record, or for sctp.h.
 */
#pragma once
#include "hook.h"
#include "l4.h"

#define PKT_DF 1       /* IPv4 "do not fragment"; always set for IPv6 */
#define PKT_FRAGMENT 2 /* first or later fragment: checksums cover the datagram, header lengths this frame only */
#define PKT_LATER 4    /* later fragment: no L4 header here, ports come from the first one */
#define PKT_INTERNAL 8 /* from a pod or this node: internal scope */
#define PKT_EGRESS 16  /* tc_egress: already routed, leaves by this device */
#define PKT_TAGGED 32  /* VLAN tags between Ethernet and IP */
#define PKT_HANDED_OVER 64 /* XDP has handed it over to tc_after_xdp */

#define CONCERN_VIP 1    /* destination is (or hashes like) a VIP or node address */
#define CONCERN_SNAT 2   /* with CONCERN_VIP: destination is a SNAT address of this node */
#define CONCERN_DIRECT 2 /* without CONCERN_VIP: destination is a local backend's own address (direct.h) */
#define CONCERN_SOURCE 4 /* source is a local backend; set only where the caller looked it up */

/* Bounds the verifier can use: masks are above any real value (two tags; IPv4 options; bounded extension headers). */
#define L3_MASK 0x1f
#define L4_MASK 0x1ff
#define L3_OFF(pk) ((u64)(pk)->l3_off & L3_MASK)
#define L4_OFF(pk) ((u64)(pk)->l4_off & L4_MASK)

struct lb_pkt {
	lb_addr saddr, daddr;
	u32 l3_len;          /* bytes from the IP header to the end of the datagram, host order; <= what the frame holds */
	__be16 sport, dport; /* of a later fragment: the first one's; ICMP: 0 */
	u16 l3_off, l4_off;  /* bytes from the start of the frame */
	u8 proto;            /* L4 protocol after extension headers */
	u8 tcp_flags;        /* 0 for UDP; SCTP: those of TCP that mean the same as its first chunk (sctp_flags()) */
	u8 ttl;              /* TTL or hop limit */
	u8 concern;          /* CONCERN_* */
	u16 flags;           /* PKT_* */
	u32 sctp_tag;        /* SCTP: what stands for TCP's numbers: pkt_number() */
};

/* On tc one frame may hold many segments. The MTU limits the size of a segment, which has all headers, with TCP options. `l4`: the
 * L4 header, complete except for options. Call this last: l3_len does not change afterwards. */
AI void pkt_segment_len(lb_ctx *ctx, const u8 *l4, struct lb_pkt *pk)
{
	u64 header;

	if (LIKELY(!CTX_GSO_SIZE(ctx)))
		return;
	header = pk->proto == PROTO_TCP ? TCP_HEADER_BYTES(l4) : l4_hlen(l4_of(pk->proto));
	pk->l3_len = CTX_GSO_SIZE(ctx) + (pk->l4_off - pk->l3_off) + header;
}

AI bool is_syn(const struct lb_pkt *pk)
{
	return (pk->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* In the slow path: does the packet come from CALL_DIRECT, with a selected backend? */
AI bool pkt_is_direct(const struct lb_pkt *pk)
{
	return !(pk->concern & CONCERN_VIP);
}

/* Is the data offset of a TCP header below its minimum (RFC 9293 §3.1)? A later fragment has no header. */
AI bool pkt_is_malformed(lb_ctx *ctx, const struct lb_pkt *pk)
{
	u8 *l4 = CTX_DATA(ctx) + L4_OFF(pk);

	if (pk->proto != PROTO_TCP || pk->flags & PKT_LATER || l4 + TCP_HLEN > CTX_END(ctx))
		return false;
	return UNLIKELY(l4[TCP_DATA_OFFSET] < TCP_HLEN << 2);
}

/* Returns the number at TCP_SEQ or TCP_ACK_SEQ, host order; 0 where the frame has no TCP header. SCTP's tag serves the same end: a
 * backend's INIT ACK has one, and each packet of its client repeats it. No meaning for UDP. */
AI u64 pkt_number(lb_ctx *ctx, const struct lb_pkt *pk, u64 at)
{
	u8 *l4 = CTX_DATA(ctx) + L4_OFF(pk);

	if (pk->proto != PROTO_TCP)
		return pk->sctp_tag;
	if (pk->flags & PKT_LATER || l4 + TCP_HLEN > CTX_END(ctx))
		return 0;
	return HTONL(*(u32 *)(l4 + at));
}

/* Is the address a valid source? Unspecified, loopback and group addresses are not (RFC 1122 §3.2.1.3, RFC 4291 §2.5.2, §2.5.3,
 * §2.7). */
AI bool addr_valid_source(const lb_addr *a)
{
	u8 first = a->w[0];

#if LB_FAMILY == 4
	return first && first != 127 && first < 224;
#else
	return first != 0xff && (a->w[0] || a->w[1] & ~(1ULL << 56));
#endif
}

AI void addrs_load(const u8 *data, struct lb_pkt *pk)
{
	addr_load(&pk->saddr, data + ETH_HLEN + IP_SADDR);
	addr_load(&pk->daddr, data + ETH_HLEN + IP_DADDR);
}

/* Reads a frame of this family with at least PLAIN_HLEN bytes as a plain one; pkt_kind() returns whether it is. */
#define PLAIN_HLEN (ETH_HLEN + IP_HLEN + TCP_HLEN)
#define PLAIN_L4(data) ((data) + ETH_HLEN + IP_HLEN)

AI void pkt_load(const u8 *data, struct lb_pkt *pk)
{
	const u8 *l3 = data + ETH_HLEN, *l4 = l3 + IP_HLEN;

	addrs_load(data, pk);
#if LB_FAMILY == 4
	pk->flags = *(u16 *)(l3 + IP4_FRAGMENT) & IP4_DF ? PKT_DF : 0;
	pk->proto = l3[IP4_PROTO];
	pk->ttl = l3[IP4_TTL];
	pk->l3_len = NTOHS(*(u16 *)(l3 + IP4_LEN));
#else
	pk->flags = PKT_DF;
	pk->proto = l3[IP6_NEXT_HEADER];
	pk->ttl = l3[IP6_HOP_LIMIT];
	pk->l3_len = NTOHS(*(u16 *)(l3 + IP6_PAYLOAD_LEN)) + IP_HLEN;
#endif
	pk->l3_off = ETH_HLEN;
	pk->l4_off = ETH_HLEN + IP_HLEN;
	pk->sport = *(u16 *)(l4 + L4_SPORT);
	pk->dport = *(u16 *)(l4 + L4_DPORT);
	pk->tcp_flags = pk->proto == PROTO_TCP ? l4[TCP_FLAGS] : 0;
}

/* Parses the frame again instead of keeping fields live over a call: a packet load costs no more than a stack load. */
#define PKT_REPARSE(data, pk) \
	do { \
		OPAQUE(data); \
		pkt_load(data, pk); \
	} while (0)

#define PKT_NOT_PLAIN 0
#define PKT_PLAIN 1 /* no options, no fragment, TCP or UDP, with the stated length */
#define PKT_TCP_CONTROL 2 /* the same with SYN, FIN or RST */

AI int pkt_kind(const u8 *data, u64 frame_len, const struct lb_pkt *pk)
{
	const u8 *l3 = data + ETH_HLEN;

#if LB_FAMILY == 4
	if (*l3 != IP4_VERSION_HLEN || *(u16 *)(l3 + IP4_FRAGMENT) & (IP4_MORE_FRAGMENTS | IP4_FRAGMENT_OFFSET))
		return PKT_NOT_PLAIN;
#else
	if (*l3 >> 4 != 6)
		return PKT_NOT_PLAIN;
#endif
	if (UNLIKELY((u64)pk->l3_len + ETH_HLEN > frame_len))
		return PKT_NOT_PLAIN;
	if (LIKELY(pk->proto == PROTO_TCP)) {
		if (UNLIKELY(pk->l3_len < IP_HLEN + TCP_HLEN))
			return PKT_NOT_PLAIN;
		return l3[IP_HLEN + 13] & (TCP_SYN | TCP_FIN | TCP_RST) ? PKT_TCP_CONTROL : PKT_PLAIN;
	}
	return pk->proto == PROTO_UDP && pk->l3_len >= IP_HLEN + UDP_HLEN ? PKT_PLAIN : PKT_NOT_PLAIN;
}
