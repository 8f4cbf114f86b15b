/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the record of a parsed packet and the quick parser: Ethernet, an IP header without options or extension
 * headers, no fragment, TCP or UDP. Everything else is for general.h, which fills the same record.
 */
#pragma once
#include "types.h"

#define PKT_DF 1       /* IPv4 "do not fragment"; always set for IPv6 */
#define PKT_FRAGMENT 2 /* first or later fragment: checksums span datagrams, header lengths hold for this frame only */
#define PKT_LATER 4    /* later fragment: no L4 header here, ports come from the first one */
#define PKT_INTERNAL 8 /* from a pod or this node: internal scope */
#define PKT_EGRESS 16  /* tc_egress: routed already, leaves by this device */
#define PKT_TAGGED 32  /* VLAN tags between Ethernet and IP */

#define NH_HOP_BY_HOP 0 /* IPv6 extension headers */
#define NH_ROUTING 43
#define NH_FRAGMENT 44
#define NH_AUTH 51
#define NH_DEST_OPTIONS 60

#define CONCERN_VIP 1    /* destination is (or hashes like) a VIP or node address */
#define CONCERN_SNAT 2   /* destination is a SNAT address of this node */
#define CONCERN_SOURCE 4 /* source is a local backend; set only where it was asked */

/* Bounds the verifier can use: masks are above any real value (two tags; IPv4 options; bounded extension headers). */
#define L3_MASK 0x1f
#define L4_MASK 0x1ff
#define L3_OFF(pk) ((u64)(pk)->l3_off & L3_MASK)
#define L4_OFF(pk) ((u64)(pk)->l4_off & L4_MASK)

struct lb_pkt {
	lb_addr saddr, daddr;
	__be16 sport, dport; /* of a later fragment: the first one's; ICMP: 0 */
	u16 l3_off, l4_off;  /* bytes from the start of the frame */
	u16 l3_len;          /* bytes from the IP header to the end of the datagram, host order; <= what the frame holds */
	u8 proto;            /* L4 protocol after extension headers */
	u8 tcp_flags;        /* 0 for UDP */
	u8 ttl;              /* TTL or hop limit */
	u8 concern;          /* CONCERN_* */
	u16 flags;           /* PKT_* */
};

/* tc may see many segments as one packet: what counts against an MTU is the size of each. Ends what the record says of lengths. */
AI void pkt_whole(lb_ctx *ctx, struct lb_pkt *pk)
{
#ifdef LB_HOOK_TC
	if (ctx->gso_size)
		pk->l3_len = ctx->gso_size + (pk->l4_off - pk->l3_off) + (pk->proto == PROTO_TCP ? TCP_HLEN : UDP_HLEN);
#endif
}

AI bool is_syn(const struct lb_pkt *pk)
{
	return (pk->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* May a packet come from this address? Not from none, the loopback, a group (RFC 1122 §3.2.1.3, RFC 4291 §2.5.2, §2.5.3, §2.7). */
AI bool is_host(const lb_addr *a)
{
	u8 first = a->w[0];

#if LB_FAMILY == 4
	return first && first != 127 && first < 224;
#else
	return first != 0xff && (a->w[0] || a->w[1] & ~(1ULL << 56));
#endif
}

/* Reads the addresses of an untagged frame of this family. Returns -1 if it is none, or too short for an IP header. */
AI int parse_addrs(const u8 *data, const u8 *end, struct lb_pkt *pk)
{
	if (data + ETH_HLEN + IP_HLEN > end || *(u16 *)(data + 12) != ETH_FAMILY)
		return -1;
	addr_load(&pk->saddr, data + ETH_HLEN + (LB_FAMILY == 4 ? 12 : 8));
	addr_load(&pk->daddr, data + ETH_HLEN + (LB_FAMILY == 4 ? 16 : 24));
	return 0;
}

/* After parse_addrs: fills the rest of the record. Returns -1 for what the general parser must see (also anything odd). */
AI int parse_quick(const u8 *data, const u8 *end, struct lb_pkt *pk)
{
	const u8 *l3 = data + ETH_HLEN, *l4 = l3 + IP_HLEN;
	u64 room, need;

	if (l4 + UDP_HLEN > end)
		return -1;
#if LB_FAMILY == 4
	if (*l3 != 0x45 || *(u16 *)(l3 + 6) & HTONS(0x3fff))
		return -1;
	pk->flags = *(u16 *)(l3 + 6) & HTONS(0x4000) ? PKT_DF : 0;
	pk->proto = l3[9];
	pk->ttl = l3[8];
	pk->l3_len = NTOHS(*(u16 *)(l3 + 2));
#else
	if (*l3 >> 4 != 6)
		return -1;
	pk->flags = PKT_DF;
	pk->proto = l3[6];
	pk->ttl = l3[7];
	pk->l3_len = NTOHS(*(u16 *)(l3 + 4)) + IP_HLEN;
#endif
	pk->l3_off = ETH_HLEN;
	pk->l4_off = ETH_HLEN + IP_HLEN;
	pk->sport = *(u16 *)l4;
	pk->dport = *(u16 *)(l4 + 2);
	if (pk->proto == PROTO_TCP) {
		if (l4 + TCP_HLEN > end)
			return -1;
		pk->tcp_flags = l4[13];
		need = IP_HLEN + TCP_HLEN;
	} else {
		if (pk->proto != PROTO_UDP)
			return -1;
		pk->tcp_flags = 0;
		need = IP_HLEN + UDP_HLEN;
	}
	return pk->l3_len < need ? -1 : 0;
}
