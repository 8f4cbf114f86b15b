/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains how a translated packet leaves: by a next-hop record, or by a look-up in the kernel's FIB if there is none.
 * The egress path is resolved before the packet or the flow changes: where XDP has none, it hands the packet over to tc_after_xdp,
 * which does all of it.
 */
#pragma once
#include "hook_write.h"
#include "prefilter.h"
#include "scratch.h"

#define AF_INET 2
#define AF_INET6 10
#define FIB_NOT_FORWARDED 4 /* BPF_FIB_LKUP_RET_NOT_FWDED: the address is this node's own */
#define FIB_NO_NEIGHBOR 7
#define FIB_FRAG_NEEDED 8 /* tc only: found, but the packet exceeds the device's MTU, which the caller compares itself */

/* Egress paths. */
#define OUT_NEXTHOP 0  /* MACs and device known */
#define OUT_STACK 1    /* to this node itself */
#define OUT_NEIGHBOR 2 /* device known: the kernel finds the MAC, or sends by a device that takes no frames from XDP */
#define OUT_NONE 3

/* Looks up the FIB for a packet that `device` received. Returns BPF_FIB_LKUP_RET_* or an error. */
AI long fib_ask(lb_ctx *ctx, u64 device, const lb_addr *from, const lb_addr *to, struct bpf_fib_lookup *p)
{
	p->family = LB_FAMILY == 4 ? AF_INET : AF_INET6;
	p->ifindex = device;
#if LB_FAMILY == 4
	p->ipv4_src = from->w[0];
	p->ipv4_dst = to->w[0];
#else
	p->ipv6_src[0] = from->w[0];
	p->ipv6_src[1] = from->w[0] >> 32;
	p->ipv6_src[2] = from->w[1];
	p->ipv6_src[3] = from->w[1] >> 32;
	p->ipv6_dst[0] = to->w[0];
	p->ipv6_dst[1] = to->w[0] >> 32;
	p->ipv6_dst[2] = to->w[1];
	p->ipv6_dst[3] = to->w[1] >> 32;
#endif
	return fib_lookup(ctx, p, sizeof(*p), 0);
}

/* Does the route to `to` leave by `device`? */
AI bool fib_leads_by(lb_ctx *ctx, u64 device, const lb_addr *from, const lb_addr *to)
{
	struct bpf_fib_lookup p = {};
	long rc = fib_ask(ctx, device, from, to, &p);

	return (!rc || rc == FIB_NO_NEIGHBOR || rc == FIB_FRAG_NEEDED) && p.ifindex == device;
}

/* May this hook send by a device whose MAC addresses are known? For XDP, the agent's device record decides. */
AI bool out_takes_frames(u64 ifindex)
{
	u64 *device;

	if (HOOK_FINDS_NEIGHBOR)
		return true;
	device = device_find(ifindex);
	return device && DEVICE_FLAGS(device) & DEVICE_XDP_SEND;
}

AI int out_fib(lb_ctx *ctx, const lb_addr *from, const lb_addr *to, struct nexthop *nh)
{
	struct bpf_fib_lookup p = {};
	u16 *mac;
	long rc = fib_ask(ctx, CTX_IFINDEX(ctx), from, to, &p);

	if (rc == FIB_NOT_FORWARDED)
		return OUT_STACK;
	nh->rest = (u64)p.ifindex << 32;
	if (rc == FIB_NO_NEIGHBOR)
		return OUT_NEIGHBOR;
	if (rc && rc != FIB_FRAG_NEEDED)
		return OUT_NONE;
	mac = (u16 *)p.smac; /* smac, dmac: 2-aligned */
	nh->macs = mac[3] | (u64)mac[4] << 16 | (u64)mac[5] << 32 | (u64)mac[0] << 48;
	nh->rest |= mac[1] | (u64)mac[2] << 16;
	if (UNLIKELY(!(nh->macs << 16))) /* older kernels return a neighbour that is not resolved yet */
		return OUT_NEIGHBOR;
	return out_takes_frames(p.ifindex) ? OUT_NEXTHOP : OUT_NEIGHBOR;
}

/* Returns false if this hook cannot send by the record: it is missing or retired, or has NEXTHOP_NO_XDP. */
AI bool nexthop_load(u64 index, struct nexthop *nh)
{
	nexthop_read(index, nh);
	return nexthop_is_usable(nh);
}

#define MIN_IP6_MTU 1280 /* bytes (RFC 8200 §5): a packet up to this size fits every link and needs no look-up */

/* Returns the MTU of a reply's egress path, 0 = unknown or irrelevant. The path record has that of requests. */
AI u64 reply_mtu(const struct lb_pkt *pk, const struct nexthop *nh)
{
	u64 *device;

	if (LIKELY(pk->l3_len <= MIN_IP6_MTU))
		return 0;
	device = device_find(NEXTHOP_IFINDEX(nh));
	return device ? DEVICE_MTU(device) : 0;
}

/* Finds the egress path to `to`: next-hop record `index`, else the FIB. */
AI int out_find(lb_ctx *ctx, u64 index, const lb_addr *from, const lb_addr *to, struct nexthop *nh)
{
	if (nexthop_load(index, nh))
		return OUT_NEXTHOP;
	return out_fib(ctx, from, to, nh);
}

/* Is the packet for tc_after_xdp? Checked before anything is changed; then out_hand_over(). */
AI bool out_is_for_tc(int out)
{
	return !HOOK_FINDS_NEIGHBOR && UNLIKELY(out == OUT_NEIGHBOR);
}

AI int out_hand_over(lb_ctx *ctx)
{
	return verdict(ctx, REASON_PASS_NEIGHBOR, ctx_hand_over(ctx));
}

/* Returns the index of a next hop that has a record, 0 if there is none. */
AI u64 nexthop_index(const struct nexthop *nh)
{
	struct lb_nexthop_key key = {};
	u32 *index;

	key.ifindex = NEXTHOP_IFINDEX(nh);
	*(u16 *)key.dmac = nh->macs;
	*(u16 *)(key.dmac + 2) = nh->macs >> 16;
	*(u16 *)(key.dmac + 4) = nh->macs >> 32;
	index = map_lookup(MAPFD(lb_nexthop_id), &key);
	return index ? *index & (NEXTHOPS - 1) : 0;
}

/* Sends the translated frame by the path that out_find() found. */
AI int out_go(lb_ctx *ctx, const struct lb_pkt *pk, int out, const struct nexthop *nh)
{
	if (out == OUT_STACK)
		return LB_PASS;
	if (pk->flags & PKT_HANDED_OVER && !ctx_untag(ctx))
		return LB_DROP;
	if (HOOK_FINDS_NEIGHBOR && out == OUT_NEIGHBOR)
		return ctx_redirect_neighbor(NEXTHOP_IFINDEX(nh));
	return out_send(ctx, CTX_DATA(ctx), CTX_END(ctx), pk, nh);
}
