/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the functions by which tc writes and sends translated packets (hook_write.h describes each). They call the
 * kernel's helpers, which handle a checksum that the device completes (CHECKSUM_PARTIAL) or has summed (CHECKSUM_COMPLETE).
 * Pointers into the packet are void afterwards.
 */
#pragma once

#define NEXTHOP_IFINDEX(nh) ((u32)((nh)->rest >> 32 & (NEXTHOP_NO_XDP - 1)))
#define nexthop_is_usable(nh) ((nh)->rest >> 32 != 0)

#define CSUM_FLAGS(proto) (l4_csum_is_optional(proto) ? 1 << 5 : 0) /* BPF_F_MARK_MANGLED_0: a checksum of 0 stays 0 */
#define PSEUDO_HEADER (1 << 4)                                /* BPF_F_PSEUDO_HDR */

AI int nat_l4(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_tuple *to, u64 diff)
{
	u64 at = L4_OFF(pk) + l4_csum_at(l4_of(pk->proto)), ports = word_diff(pk->sport, to->sport) + word_diff(pk->dport, to->dport);
	u16 both[2] = {to->sport, to->dport};

	/* addresses are in the pseudo header, which a partial checksum covers; ports are not */
	if (l4_csum(ctx, at, 0, csum_fold(diff), PSEUDO_HEADER | CSUM_FLAGS(pk->proto)) ||
	    l4_csum(ctx, at, 0, csum_fold(ports), CSUM_FLAGS(pk->proto)))
		return -1;
	return skb_store(ctx, L4_OFF(pk), both, sizeof(both), 0) ? -1 : 0;
}

/* Writes `to`; `bytes`, a constant: of an SCTP packet, so many bytes of its beginning are `head`, which no Internet checksum compensates.
 * 0: it is one of another protocol. */
AI int nat_write_as(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops, const void *head, const u32 bytes)
{
	u64 diff = addr_diff(&pk->saddr, &to->saddr) + addr_diff(&pk->daddr, &to->daddr);
	lb_addr both[2] = {to->saddr, to->daddr};
	u8 ttl = pk->ttl - hops;

	if (bytes) {
		if (skb_store(ctx, L4_OFF(pk), head, bytes, CSUM_RECOMPUTE))
			return -1;
	} else if (!(pk->flags & PKT_LATER) && nat_l4(ctx, pk, to, diff)) {
		return -1;
	}
#if LB_FAMILY == 4
	diff += hops ? HOP_DIFF : 0;
	if (l3_csum(ctx, L3_OFF(pk) + IP4_CSUM, 0, csum_fold(diff), 0) || skb_store(ctx, L3_OFF(pk) + IP4_TTL, &ttl, 1, 0))
		return -1;
	return skb_store(ctx, L3_OFF(pk) + IP4_SADDR, both, sizeof(both), 0) ? -1 : 0;
#else
	/* no header checksum compensates the addresses: the kernel must add the change to a CHECKSUM_COMPLETE sum */
	if (skb_store(ctx, L3_OFF(pk) + IP6_HOP_LIMIT, &ttl, 1, CSUM_RECOMPUTE))
		return -1;
	return skb_store(ctx, L3_OFF(pk) + IP6_SADDR, both, sizeof(both), CSUM_RECOMPUTE) ? -1 : 0;
#endif
}

AI int nat_write(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops)
{
	u16 ports[2] = {to->sport, to->dport};

	return UNLIKELY(pk->proto == PROTO_SCTP) ? nat_write_as(ctx, pk, to, hops, ports, sizeof(ports)) : nat_write_as(ctx, pk, to, hops, 0, 0);
}

AI int nat_write_plain(lb_ctx *ctx, u8 *data, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops, u64 diff, u64 sum)
{
	return nat_write_as(ctx, pk, to, hops, 0, 0);
}

AI int nat_write_sctp(lb_ctx *ctx, u8 *data, const struct lb_pkt *pk, const struct lb_tuple *to, u64 hops, u64 diff)
{
	const u8 *l4 = PLAIN_L4(data);
	u32 head[SCTP_HLEN / 4] = {nat_port_word(to->sport, to->dport), *(u32 *)(l4 + SCTP_TAG), *(u32 *)(l4 + SCTP_CSUM)};

	head[SCTP_CSUM / 4] = nat_crc32c(head[SCTP_CSUM / 4], pk, to);
	return nat_write_as(ctx, pk, to, hops, head, sizeof(head));
}

#define macs_write(data, nh) 0

AI int out_macs(lb_ctx *ctx, const struct nexthop *nh)
{
	u64 macs[2] = {nh->macs, nh->rest};

	return skb_store(ctx, ETH_DMAC, macs, ETH_TYPE, 0) ? -1 : 0;
}

AI int out_send(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct nexthop *nh)
{
	if (out_macs(ctx, nh))
		return LB_DROP;
	if (pk->flags & PKT_EGRESS && NEXTHOP_IFINDEX(nh) == CTX_IFINDEX(ctx))
		return LB_PASS; /* it already leaves by that device */
	return redirect_to(NEXTHOP_IFINDEX(nh), 0);
}

#define send_plain(ctx, data, pk, nh, ifindex) out_send(ctx, data, 0, pk, nh)
