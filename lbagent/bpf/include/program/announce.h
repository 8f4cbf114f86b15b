/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_ANNOUNCE: it answers for the announced addresses of this node, which the kernel does not
 * have. An ARP request (RFC 826, RFC 5227) or a neighbor solicitation (RFC 4861) becomes its own answer and goes back.
 *
 * lb_vip holds the announced addresses of each device, with the MAC address and the end of the entry: the entries of a stopped
 * agent expire soon. Any other frame passes, also another node's message about the address: the agent receives it.
 */
#pragma once
#include "answer_write.h"
#include "fwd.h"
#include "prefilter.h"
#include "vip.h"

#define ANNOUNCE_PULL (ETH_HLEN + IP_HLEN + 128) /* bytes: what tc makes linear */

/* Passes on a frame that may request an address, whether it is for the device's MAC address or for a group. Not for outgoing
 * frames. */
AI void announce_call(lb_ctx *ctx, const u8 *data)
{
	u16 type = *(u16 *)(data + ETH_TYPE);

	if (type == ETH_ARP)
		lb_call(ctx, CALL_ANNOUNCE);
	else if (type == ETH_IP6)
		lb_call(ctx, CALL_ANNOUNCE + 1);
}

/* The same for a frame that the hook does not process otherwise, then passes it. */
AI int announce_or_pass(lb_ctx *ctx, u16 flags)
{
	u8 *data = CTX_DATA(ctx);

	if (ANNOUNCES && !(flags & PKT_EGRESS) && !CTX_IS_TAGGED(ctx) && data + ETH_HLEN <= CTX_END(ctx))
		announce_call(ctx, data);
	return LB_PASS;
}

AI void mac_copy(u8 *to, const u8 *from)
{
	for (u64 i = 0; i < MAC_SIZE; i += sizeof(u16))
		*(u16 *)(to + i) = *(u16 *)(from + i);
}

/* Is the frame for this device, by its own or a group address, and from a single host? */
AI bool announce_may_answer(u64 ifindex, const u8 *data)
{
	return !(data[ETH_SMAC] & MAC_GROUP) && (*data & MAC_GROUP || frame_is_for_device(ifindex, data));
}

/* Returns the entry that the device announces for an address, NULL for none. */
AI struct lb_vip *announce_find(u64 ifindex, const lb_addr *address)
{
	return vip_find(MAPFD(lb_vip), ifindex, address);
}

#if LB_FAMILY == 4
/* The frame becomes the answer in place. A request of an address for itself is an announcement, not a request. */
AI bool announce_answer(lb_ctx *ctx)
{
	u8 *data = CTX_DATA(ctx), *arp = data + ETH_HLEN;
	lb_addr sender, target;
	struct lb_vip *vip;

	if (arp + ARP_HLEN > CTX_END(ctx) || *(u16 *)(data + ETH_TYPE) != ETH_ARP)
		return false;
	if (*(u32 *)arp != ARP_ETHERNET_IP4 || *(u32 *)(arp + ARP_SIZES) != ARP_REQUEST || !announce_may_answer(CTX_IFINDEX(ctx), data))
		return false;
	addr_load(&sender, arp + ARP_SENDER_ADDR);
	addr_load(&target, arp + ARP_TARGET_ADDR);
	if (addr_eq(&sender, &target) || arp[ARP_SENDER_MAC] & MAC_GROUP)
		return false;
	vip = announce_find(CTX_IFINDEX(ctx), &target);
	if (!vip)
		return false;
	mac_copy(arp + ARP_TARGET_MAC, arp + ARP_SENDER_MAC);
	mac_copy(data + ETH_DMAC, arp + ARP_SENDER_MAC);
	mac_copy(data + ETH_SMAC, vip->mac);
	mac_copy(arp + ARP_SENDER_MAC, vip->mac);
	addr_store(arp + ARP_SENDER_ADDR, &target);
	addr_store(arp + ARP_TARGET_ADDR, &sender);
	*(u16 *)(arp + ARP_OPERATION) = ARP_REPLY;
	return true;
}
#else
#define SOLICITATION_MAX 128 /* bytes of ICMPv6: no solicitation has more options */
#define ADVERTISEMENT_LEN (ETH_HLEN + IP_HLEN + NEIGHBOR_HLEN + NEIGHBOR_OPTION)

/* Values of an advertisement, saved while the frame is reshaped. */
struct lb_solicitation {
	lb_addr sender, target;
	u16 mac[MAC_SIZE / 2];     /* of the requesting host */
	u16 own_mac[MAC_SIZE / 2]; /* of the announced address */
};

/* Is it a valid neighbor solicitation (RFC 4861 §7.1.1)? Options are not parsed, but the checksum covers them. */
AI bool solicitation_is_valid(lb_ctx *ctx, const u8 *l3, const u8 *end, const lb_addr *sender)
{
	const u8 *icmp = l3 + IP_HLEN;
	u64 len = NTOHS(*(u16 *)(l3 + IP6_PAYLOAD_LEN));
	lb_addr to;

	if (*l3 >> 4 != 6 || l3[IP6_NEXT_HEADER] != PROTO_ICMP6 || l3[IP6_HOP_LIMIT] != NEIGHBOR_HOPS)
		return false;
	if (*(u16 *)(icmp + ICMP_TYPE) != NEIGHBOR_SOLICITATION || len < NEIGHBOR_HLEN || len > SOLICITATION_MAX || icmp + len > end)
		return false;
	addr_load(&to, l3 + IP6_DADDR);
	return csum_fold(addr_sum(sender) + addr_sum(&to) + HTONS(len) + HTONS(PROTO_ICMP6) + sum_bytes(ctx, ETH_HLEN + IP_HLEN, len, SOLICITATION_MAX)) == 0xffff;
}

AI bool announce_read(lb_ctx *ctx, struct lb_solicitation *s)
{
	u8 *data = CTX_DATA(ctx), *end = CTX_END(ctx), *l3 = data + ETH_HLEN;
	struct lb_vip *vip;

	if (l3 + IP_HLEN + NEIGHBOR_HLEN > end || *(u16 *)(data + ETH_TYPE) != ETH_IP6 || !announce_may_answer(CTX_IFINDEX(ctx), data))
		return false;
	addr_load(&s->sender, l3 + IP6_SADDR);
	addr_load(&s->target, l3 + IP_HLEN + NEIGHBOR_TARGET);
	if (addr_eq(&s->sender, &s->target) || (u8)s->sender.w[0] == 0xff || !solicitation_is_valid(ctx, l3, end, &s->sender))
		return false;
	vip = announce_find(CTX_IFINDEX(ctx), &s->target);
	if (!vip)
		return false;
	mac_copy((u8 *)s->mac, data + ETH_SMAC);
	mac_copy((u8 *)s->own_mac, vip->mac);
	return true;
}

/* A host without an address checks whether another host has its address: the advertisement goes to all nodes (RFC 4861 §7.2.4, RFC
 * 4862 §5.4). */
AI bool solicitation_is_probe(struct lb_solicitation *s)
{
	const u16 all_nodes[MAC_SIZE / 2] = {HTONS(0x3333), 0, HTONS(1)};

	if (s->sender.w[0] | s->sender.w[1])
		return false;
	s->sender.w[0] = HTONS(0xff02);
	s->sender.w[1] = 1ULL << 56;
	mac_copy((u8 *)s->mac, (const u8 *)all_nodes);
	return true;
}

AI void advertisement_write(u8 *data, const struct lb_solicitation *s, u32 flags)
{
	u8 *l3 = data + ETH_HLEN, *icmp = l3 + IP_HLEN, *option = icmp + NEIGHBOR_HLEN;
	u64 sum = addr_sum(&s->target) * 2 + addr_sum(&s->sender) + HTONS(NEIGHBOR_HLEN + NEIGHBOR_OPTION) + HTONS(PROTO_ICMP6);

	mac_copy(data + ETH_DMAC, (const u8 *)s->mac);
	mac_copy(data + ETH_SMAC, (const u8 *)s->own_mac);
	*(u16 *)(data + ETH_TYPE) = ETH_IP6;
	*(u32 *)l3 = HTONL(0x60000000);
	*(u32 *)(l3 + IP6_PAYLOAD_LEN) = HTONL((NEIGHBOR_HLEN + NEIGHBOR_OPTION) << 16 | PROTO_ICMP6 << 8 | NEIGHBOR_HOPS);
	addr_store(l3 + IP6_SADDR, &s->target);
	addr_store(l3 + IP6_DADDR, &s->sender);
	*(u16 *)(icmp + ICMP_TYPE) = NEIGHBOR_ADVERTISEMENT;
	*(u32 *)(icmp + ICMP_REST) = flags;
	addr_store(icmp + NEIGHBOR_TARGET, &s->target);
	*(u16 *)option = OPTION_TARGET_MAC;
	mac_copy(option + sizeof(u16), (const u8 *)s->own_mac);
	sum += NEIGHBOR_ADVERTISEMENT + (flags & 0xffff) + OPTION_TARGET_MAC + s->own_mac[0] + s->own_mac[1] + s->own_mac[2];
	*(u16 *)(icmp + ICMP_CSUM) = (u16)~csum_fold(sum);
}

AI bool announce_answer(lb_ctx *ctx)
{
	struct lb_solicitation s;
	u32 flags;
	u8 *data;

	if (!announce_read(ctx, &s))
		return false;
	flags = solicitation_is_probe(&s) ? NEIGHBOR_OVERRIDE : NEIGHBOR_SOLICITED | NEIGHBOR_OVERRIDE;
	if (!ctx_resize(ctx, ADVERTISEMENT_LEN - NEIGHBOR_OPTION, NEIGHBOR_OPTION))
		return false;
	data = CTX_DATA(ctx);
	if (data + ADVERTISEMENT_LEN > CTX_END(ctx))
		return false;
	advertisement_write(data, &s, flags);
	return true;
}
#endif

/* Is it a frame that comes here from the entry point: ARP, or IPv6 for a group? A solicitation for this device alone comes by
 * icmp.h. */
AI bool announce_is_asked(const u8 *data)
{
	return *(u16 *)(data + ETH_TYPE) == ETH_ARP || *data & MAC_GROUP;
}

/* The program CALL_ANNOUNCE. Where XDP cannot send the answer back, tc_after_xdp gets the request. */
AI int announce_main(lb_ctx *ctx)
{
	u64 len = CTX_LEN(ctx);

	if (!ANNOUNCES)
		return LB_PASS;
	if (!out_takes_frames(CTX_IFINDEX(ctx)))
		return ctx_hand_over(ctx);
	ctx_linearize(ctx, ANNOUNCE_PULL);
	if (!announce_answer(ctx))
		return LB_PASS;
	count(REASON_ANSWER_NEIGHBOR, len);
	ctx_forget_hand_over(ctx);
	return ctx_send_back(ctx, false);
}
