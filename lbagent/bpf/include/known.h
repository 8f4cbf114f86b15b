/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the frequent case: a packet of a flow that is in the table, or a reply to a SNAT port, with its backend
 * alive, its next hop known and room in every limit. Everything else returns GO_SLOW with the packet untouched.
 */
#pragma once
#include "ct.h"
#include "filter.h"
#include "fwd.h"

#define GO_SLOW (-1)

AI void count_flow(u64 service, u64 backend, u64 bytes)
{
	count(METRIC_SERVICE + service, bytes);
	count(METRIC_BACKEND + (backend & CFG->path_mask), bytes);
}

/* Returns the tuple of a flow's packet towards its backend. */
AI void flow_tuple(const struct lb_pkt *pk, const lb_path *path, u64 meta, u64 value, struct lb_tuple *to)
{
	path_addr(path, &to->daddr);
	to->dport = META_PORT(meta);
	if (V_SNAT(value)) {
		path_snat(path, &to->saddr);
		to->sport = V_SNAT(value);
	} else {
		to->saddr = pk->saddr;
		to->sport = pk->sport;
	}
}

/* Does a flow stay on this node? With SNAT even a local backend is reached by its device: the stack would not take a packet
 * that comes in with the node's own address as its source. */
AI bool stays_here(u64 meta, u64 value)
{
	return META_IS(meta, PATH_LOCAL) && !V_SNAT(value);
}

#if LB_FAMILY == 6 && defined(LB_HOOK_XDP)
/* What the L4 checksum changes by is the same for each packet of a flow. IPv6 addresses are long to add up, so the entry's last
 * word keeps the sum (16 bits) under a mark (48 bits) of all it depends on: the incarnation of the entry, backend and port (the
 * value word without its state), and the address it is sent from. Another mark: added up again. */
AI u64 flow_sum(const struct ct_flow *f, const struct lb_pkt *pk, const struct lb_tuple *to)
{
	u64 *at = f->seen_at + 1, kept = RD64(at), mark = to->saddr.w[0] * 0x9E3779B97F4A7C15ULL + to->saddr.w[1], sum;

	mark = (mark ^ (f->value & ~(V_STATE_MASK | V_FIN_CLIENT | V_FIN_BACKEND))) * 0x9FB21C651E98DF25ULL;
	if (LIKELY(!((kept ^ mark) >> 16)))
		return kept & 0xffff;
	sum = csum_fold(nat_addresses(pk, to) + nat_ports(pk, to));
	WR64(at, (mark & ~0xffffULL) | sum);
	return sum;
}

#define FLOW_WRITE(ctx, data, end, pk, to, hops, f) nat_write_sum(data, end, pk, to, hops, flow_sum(f, pk, to))
#else
#define FLOW_WRITE(ctx, data, end, pk, to, hops, f) nat_write(ctx, data, end, pk, to, hops)
#endif

AI int flow_quick(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct ct_key *key, struct ct_flow *f, u64 now)
{
	u64 v = f->value, meta, len = FRAME_LEN(ctx, data, end);
	lb_path *path = path_of(V_BACKEND(v));
	struct nexthop nh;
	struct lb_tuple to;
	bool here;

	meta = PATH_META(path);
	here = stays_here(meta, v);
	if (UNLIKELY(!path_serves(meta, v) || over_mtu(pk->l3_len, META_MTU(meta))))
		return GO_SLOW;
	if (!here && UNLIKELY(pk->ttl <= 1 || !nexthop_load(META_NEXTHOP(meta), &nh)))
		return GO_SLOW;
	if (UNLIKELY(pk->flags & PKT_EGRESS || !ct_refresh_quick(f, key, pk, now)))
		return GO_SLOW;
	count(here ? REASON_FWD_LOCAL : REASON_FWD_ESTABLISHED, len);
	count_flow(SEEN_SERVICE(f->seen_at), V_BACKEND(v), len);
	flow_tuple(pk, path, meta, v, &to);
	if (FLOW_WRITE(ctx, data, end, pk, &to, !here, f))
		return LB_DROP;
	return here ? LB_PASS : out_send(ctx, data, end, pk, &nh);
}

/* Loads what the service's clients see. Returns false if the service has gone. */
AI bool frontend_of(u64 service, lb_addr *vip, u16 *vip_port)
{
	u32 id = service;
	struct FAMILY(reverse_nat) *r = map_lookup(FAMILY_FD(reverse_nat), &id);

	if (!r || !r->port)
		return false;
	addr_load(vip, &r->address);
	*vip_port = r->port;
	return true;
}

AI bool snat_port(u16 port)
{
	u64 host = NTOHS(port);

	return host >= CFG->snat_port_min && host <= CFG->snat_port_max;
}

/* A reply to one of our SNAT ports. Stamped every 8 ticks and learned from in the slow path. */
AI int reply_quick(lb_ctx *ctx, u8 *data, u8 *end, const struct lb_pkt *pk, const struct slot_view *view, u64 now)
{
	u64 len = FRAME_LEN(ctx, data, end);
	struct lb_tuple to;
	struct nexthop nh;

	if (UNLIKELY(SLOT_SEEN(view->meta) != SLOT_UNITS(now) || pk->tcp_flags & (TCP_FIN | TCP_RST) || pk->ttl <= 1))
		return GO_SLOW;
	if (UNLIKELY(!nexthop_load(SLOT_NEXTHOP(view->meta), &nh) || !frontend_of(SLOT_SERVICE(view->meta), &to.saddr, &to.sport)))
		return GO_SLOW;
	if (UNLIKELY(over_mtu(pk->l3_len, reply_mtu(pk, &nh))))
		return GO_SLOW;
	to.daddr = view->client;
	to.dport = view->client_port;
	count(REASON_FWD_REPLY, len);
	count_flow(SLOT_SERVICE(view->meta), SLOT_BACKEND(view->meta), len);
	if (nat_write(ctx, data, end, pk, &to, 1))
		return LB_DROP;
	return out_send(ctx, data, end, pk, &nh);
}
