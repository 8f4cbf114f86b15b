/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the functions by which XDP writes and sends translated packets (hook_write.h describes each): directly into
 * the frame, with incremental checksums.
 */
#pragma once

#define NEXTHOP_IFINDEX(nh) ((u32)((nh)->rest >> 32))
#define nexthop_is_usable(nh) ((s64)(nh)->rest >> 32 > 0) /* NEXTHOP_NO_XDP is the sign bit */

AI void nat_l3(u8 *l3, const struct lb_pkt *pk, const struct lb_tuple *to, u64 diff, u64 hops)
{
#if LB_FAMILY == 4
	if (hops) {
		diff += HOP_DIFF;
		l3[IP4_TTL] = pk->ttl - 1;
	}
	*(u16 *)(l3 + IP4_CSUM) = csum_apply(*(u16 *)(l3 + IP4_CSUM), diff);
	addr_store(l3 + IP4_SADDR, &to->saddr);
	addr_store(l3 + IP4_DADDR, &to->daddr);
#else
	if (hops)
		l3[IP6_HOP_LIMIT] = pk->ttl - 1;
	addr_store(l3 + IP6_SADDR, &to->saddr);
	addr_store(l3 + IP6_DADDR, &to->daddr);
#endif
}

/* Writes the checksum of a constant protocol: then its offset is constant, too, as the verifier requires. Returns as nat_l4(). */
AI int nat_csum(u8 *l4, u8 *end, const u8 proto, u64 sum, bool plain)
{
	u16 *field = (u16 *)(l4 + l4_csum_at(l4_of(proto)));

	if (!plain && (u8 *)(field + 1) > end)
		return -1;
	if (!l4_csum_is_absent(proto, *field))
		*field = l4_csum_apply(proto, *field, sum);
	return 0;
}

/* Writes ports and checksum; `sum`: the change by addresses and ports. Returns -1 if the frame is too short (not checked for a
 * `plain` one). */
AI int nat_l4(u8 *l4, u8 *end, const struct lb_pkt *pk, const struct lb_tuple *to, u64 sum, bool plain)
{
	if (pk->proto == PROTO_TCP) {
		if (nat_csum(l4, end, PROTO_TCP, sum, plain))
			return -1;
	} else if (pk->proto == PROTO_UDP) {
		if (nat_csum(l4, end, PROTO_UDP, sum, plain))
			return -1;
	} else if (plain || pk->proto != PROTO_SCTP || l4 + SCTP_HLEN > end) {
		return -1;
	}
	*(u16 *)(l4 + L4_SPORT) = to->sport;
	*(u16 *)(l4 + L4_DPORT) = to->dport;
	return 0;
}

/* Writes `to` into the packet `pk` describes and subtracts `hops` (0 or 1) from its TTL. Returns -1 if the frame is too short.
 * `data`, `end`: those of the context, which tc does not need. */
AI int nat_write(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops)
{
	u8 *l3 = data + L3_OFF(pk), *l4 = data + L4_OFF(pk);
	u64 diff;

	if (l3 + IP_HLEN > end)
		return -1;
	diff = nat_diff(l3, pk, to);
	if (!(pk->flags & PKT_LATER) && nat_l4(l4, end, pk, to, diff + nat_ports(pk, to), false))
		return -1;
	nat_l3(l3, pk, to, diff, hops);
	return 0;
}

/* The same for a plain frame of PLAIN_HLEN bytes or more, whose L4 checksum changes by `sum`, its addresses by `diff`. */
AI int nat_write_plain(lb_ctx *ctx, u8 *data, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops, u64 diff, u64 sum)
{
	nat_l4(data + ETH_HLEN + IP_HLEN, 0, pk, to, sum, true);
	nat_l3(data + ETH_HLEN, pk, to, diff, hops);
	return 0;
}

AI int nat_write_sctp(lb_ctx *ctx, u8 *data, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops, u64 diff)
{
	u8 *l4 = PLAIN_L4(data);

	*(u32 *)(l4 + SCTP_CSUM) = nat_crc32c(*(u32 *)(l4 + SCTP_CSUM), pk, to);
	*(u32 *)(l4 + L4_SPORT) = nat_port_word(to->sport, to->dport);
	nat_l3(data + ETH_HLEN, pk, to, diff, hops);
	return 0;
}

/* Writes a next hop's MACs, before anything else, so that no registers hold them. */
AI int macs_write(u8 *data, const struct nexthop *nh)
{
	*(u64 *)data = nh->macs;
	*(u32 *)(data + sizeof(nh->macs)) = nh->rest;
	return 0;
}

/* Sends a frame with complete MAC addresses. */
AI int send_plain(lb_ctx *ctx, u8 *data, const struct lb_pkt *pk, const struct nexthop *nh, u64 ifindex)
{
	return NEXTHOP_IFINDEX(nh) == ifindex ? XDP_TX : redirect_to(NEXTHOP_IFINDEX(nh), 0);
}

/* Removes the VLAN tags: a next hop is a neighbour on its device itself, and a VLAN's neighbours are on the VLAN's own device. The
 * Ethernet type before the packet becomes the frame's; the caller writes the addresses. */
AI int vlan_untag(lb_ctx *ctx, const struct lb_pkt *pk)
{
	u64 tags = L3_OFF(pk) - ETH_HLEN;

	if (tags != VLAN_HLEN && tags != 2 * VLAN_HLEN)
		return -1;
	return adjust_head(ctx, tags) ? -1 : 0;
}

AI int out_macs(lb_ctx *ctx, const struct nexthop *nh)
{
	return -1;
}

/* Sends the frame to a next hop. */
AI int out_send(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct nexthop *nh)
{
	bool back = NEXTHOP_IFINDEX(nh) == CTX_IFINDEX(ctx);

	if (UNLIKELY(pk->flags & PKT_TAGGED)) {
		if (vlan_untag(ctx, pk))
			return LB_DROP;
		data = CTX_DATA(ctx);
		end = CTX_END(ctx);
	}
	if (data + ETH_HLEN > end)
		return LB_DROP;
	*(u64 *)data = nh->macs;
	*(u32 *)(data + sizeof(nh->macs)) = nh->rest;
	return back ? XDP_TX : redirect_to(NEXTHOP_IFINDEX(nh), 0);
}
