/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the first checks of a frame: may an address of the packet belong to a service, and is the frame for the MAC
 * address of its device? The prefilter is lossy: a clear bit is certain, a set bit proves nothing.
 */
#pragma once
#include "maps.h"
#include "parse.h"

/* Position of an address; the same sums as filter_position() in maps/prefilter.py. */
AI u64 prefilter_position4(u64 word)
{
	return (word * 0x9E3779B1ULL & 0xffffffff) >> (32 - FILTER_BITS);
}

AI u64 prefilter_position6(u64 high, u64 low)
{
	high *= 0x9E3779B97F4A7C15ULL;
	return (high ^ high >> 32 ^ low) * 0xBF58476D1CE4E5B9ULL >> (64 - FILTER_BITS);
}

#if LB_FAMILY == 4
#define prefilter_position(a) prefilter_position4((a)->w[0])
#else
#define prefilter_position(a) prefilter_position6((a)->w[0], (a)->w[1])
#endif

AI u64 prefilter_dst_at(u64 position)
{
	return RD64((u8 *)MAPVAL(lb_filter) + (position >> 5) * 8) >> ((position & 31) * 2) & 3;
}

AI bool prefilter_src_at(u64 position)
{
	return RD64((u8 *)MAPVAL(lb_filter) + FILTER_DST_BYTES + (position >> 6) * 8) >> (position & 63) & 1;
}

/* Returns CONCERN_VIP, CONCERN_VIP | CONCERN_SNAT, or CONCERN_DIRECT. */
AI u64 prefilter_dst(const lb_addr *a)
{
	return prefilter_dst_at(prefilter_position(a));
}

AI bool prefilter_src(const lb_addr *a)
{
	return prefilter_src_at(prefilter_position(a));
}

/* The same for an untagged IPv6 frame with a complete header, for the entry points of both families. */
AI u64 prefilter_dst6(const u8 *data)
{
	const u8 *dst = data + ETH_HLEN + IP6_DADDR;

	return prefilter_dst_at(prefilter_position6(*(u64 *)dst, *(u64 *)(dst + 8)));
}

AI bool prefilter_src6(const u8 *data)
{
	const u8 *src = data + ETH_HLEN + IP6_SADDR;

	return prefilter_src_at(prefilter_position6(*(u64 *)src, *(u64 *)(src + 8)));
}

/* Is there a local UDP backend at the address with this position? Only for CONCERN_DIRECT; the bit is the source bit of the
 * neighbouring position. */
AI bool prefilter_datagrams_at(u64 position)
{
	return prefilter_src_at(position ^ 1);
}

#define DIRECT_MARK_SPARE 2 /* ticks that a mark outlives its flow */

/* The tick of whole_ticks() (32 bits) until which packets from a client port to a local backend are inspected, because a direct
 * connection of that port is a flow (direct.h). 0: no such connection. Ports share marks. */
AI u32 *direct_mark(u16 client_port)
{
	return (u32 *)((u8 *)MAPVAL(lb_direct) + (client_port & (DIRECT_MARKS - 1)) * sizeof(u32));
}

/* TCP: a SYN may open a connection that the backend cannot tell from a flow's; other segments matter only where such a connection
 * is a flow. */
AI bool direct_segment_is_asked(u8 tcp_flags, u16 client_port)
{
	return (tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN || RD32(direct_mark(client_port));
}

/* Must direct.h process a packet with a destination of CONCERN_DIRECT? `l4`: its L4 header if `plain`. Another protocol may be an
 * ICMP error, or an extension header before TCP or UDP. */
AI bool direct_is_asked_of(u8 proto, bool plain, const u8 *l4, const u8 *end, u64 position)
{
	if (proto == PROTO_TCP)
		return !plain || l4 + TCP_HLEN > end || direct_segment_is_asked(l4[TCP_FLAGS], *(u16 *)(l4 + L4_SPORT));
	return proto != PROTO_UDP || prefilter_datagrams_at(position);
}

/* The same for a packet of either family with a complete header; `flags`: PKT_EGRESS. */
AI bool direct_is_asked4(lb_ctx *ctx, const u8 *l3, const u8 *end, u16 flags)
{
	bool plain = *l3 == IP4_VERSION_HLEN && !(*(u16 *)(l3 + IP4_FRAGMENT) & (IP4_MORE_FRAGMENTS | IP4_FRAGMENT_OFFSET));

	return ctx_comes_first(ctx, flags & PKT_EGRESS) &&
	       direct_is_asked_of(l3[IP4_PROTO], plain, l3 + IP4_HLEN, end, prefilter_position4(*(u32 *)(l3 + IP4_DADDR)));
}

AI bool direct_is_asked6(lb_ctx *ctx, const u8 *l3, const u8 *end, u16 flags)
{
	const u8 *dst = l3 + IP6_DADDR;

	return ctx_comes_first(ctx, flags & PKT_EGRESS) &&
	       direct_is_asked_of(l3[IP6_NEXT_HEADER], true, l3 + IP6_HLEN, end, prefilter_position6(*(u64 *)dst, *(u64 *)(dst + 8)));
}

#if LB_FAMILY == 4
#define direct_is_asked direct_is_asked4
#else
#define direct_is_asked direct_is_asked6
#endif

/* May a packet that belongs to no service be one for direct.h? Addresses that share a position of the prefilter hide
 * CONCERN_DIRECT. */
AI bool direct_is_possible(lb_ctx *ctx, const struct lb_pkt *pk)
{
	if (!ctx_comes_first(ctx, pk->flags & PKT_EGRESS) || !prefilter_src(&pk->daddr))
		return false;
	return pk->proto == PROTO_UDP || (pk->proto == PROTO_TCP && direct_segment_is_asked(pk->tcp_flags, pk->sport));
}

/* A device's record in two words: ifindex 32, first four bytes of the MAC; its last two, flags 16, MTU 16. */
#define DEVICE_FLAGS(d) (RD64((d) + 1) >> 16 & 0xffff)
#define DEVICE_MTU(d) (RD64((d) + 1) >> 32 & 0xffff)

AI u64 *device_at(u64 position)
{
	return (u64 *)((u8 *)MAPVAL(lb_device) + (position & (DEVICES - 1)) * sizeof(struct lb_device));
}

/* Returns the record of a device, NULL if the agent is not attached to it. */
AI u64 *device_find(u64 ifindex)
{
#pragma unroll
	for (u64 n = 0; n < DEVICE_PROBES; n++) {
		u64 *d = device_at(ifindex + n);

		if ((RD64(d) & 0xffffffff) == ifindex)
			return d;
	}
	return 0;
}

/* Returns PKT_INTERNAL for a device from which pods send, else 0. */
AI u16 device_scope(u64 ifindex)
{
	u64 *device = device_find(ifindex);

	return device && DEVICE_FLAGS(device) & DEVICE_POD ? PKT_INTERNAL : 0;
}

/* Does a packet leave that this node has received, from a pod or from elsewhere? A hook has seen it where it came in. */
AI bool pkt_is_forwarded(lb_ctx *ctx, const struct lb_pkt *pk)
{
	return HOOK_HAS_EGRESS && pk->flags & PKT_EGRESS && CTX_CAME_BY(ctx, true);
}

/* Has the pod device's hook already translated this packet on egress? A packet of a direct connection that is a flow then looks
 * like one of another flow of its client port (direct.h). */
AI bool direct_was_translated(lb_ctx *ctx, const struct lb_pkt *pk)
{
	u64 device = CTX_CAME_BY(ctx, pk->flags & PKT_EGRESS);

	return pk->flags & PKT_EGRESS && RD32(direct_mark(pk->dport)) && device && device_scope(device);
}

AI bool device_has_mac(u64 *d, u64 ifindex, const u8 *mac)
{
	return RD64(d) == (ifindex | (u64)*(u32 *)mac << 32) && (u16)RD64(d + 1) == *(u16 *)(mac + 4);
}

/* Is the frame for this device's MAC address? Without a record of the device, every frame is that has no group address. */
AI bool frame_is_for_device(u64 ifindex, const u8 *data)
{
	u64 *d = device_at(ifindex);

	if (LIKELY(device_has_mac(d, ifindex, data)))
		return true;
	d = device_find(ifindex);
	return d ? device_has_mac(d, ifindex, data) : !(*data & MAC_GROUP);
}
