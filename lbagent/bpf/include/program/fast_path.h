/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the most frequent cases: a packet of a flow in the table, or a reply to a SNAT port, with a live backend, a
 * known next hop and no limit (TTL, MTU) exceeded. In any other case a function returns TO_SLOW_PATH with the packet untouched.
 */
#pragma once
#include "ct_find.h"
#include "ct_refresh.h"
#include "snat.h"
#include "prefilter.h"
#include "fwd.h"

#define TO_SLOW_PATH (-1)

/* `index`: of the backend's record, below the number of records. */
AI void count_flow_in(u8 *row, u64 service, u64 index, u64 bytes)
{
	u8 *backends = row + METRIC_BACKEND * sizeof(struct lb_counter) + index * sizeof(struct lb_counter);

	OPAQUE(backends); /* or each field gets an offset that exceeds an instruction */
	count_in(row, METRIC_SERVICE + service, bytes);
	count_in(backends, 0, bytes);
}

AI void count_flow(u64 service, u64 backend, u64 bytes)
{
	count_flow_in(counters(), service, backend & CFG(path_mask), bytes);
}

/* Returns the tuple of a flow's packet towards its backend, at this port. */
AI void flow_tuple_to(const struct lb_pkt *pk, const lb_path *path, u16 port, u64 value, struct lb_tuple *to)
{
	path_addr(path, &to->daddr);
	to->dport = port;
	to->saddr = pk->saddr;
	to->sport = pk->sport;
	if (value_is_snat(value)) {
		path_snat(path, &to->saddr);
		to->sport = value_snat_port(value);
	}
}

AI void flow_tuple(const struct lb_pkt *pk, const lb_path *path, u64 meta, u64 value, struct lb_tuple *to)
{
	flow_tuple_to(pk, path, meta_port(meta, pk->dport), value, to);
}

/* Is the packet delivered to this node's stack? With SNAT, the packet leaves by a device even for a local backend: the stack
 * rejects a received packet whose source is the node's own address. The current path record does not matter: a flow keeps its mode,
 * and the stack routes a packet to its backend wherever that is. */
AI bool forward_is_local(u64 forward)
{
	return forward == FORWARD_LOCAL;
}

AI bool flow_stays_here(u64 value)
{
	return forward_is_local(value_forward(value));
}

#if LB_FAMILY == 6
/* The change of the L4 checksum is the same for each packet of a flow. Adding up IPv6 addresses is slow, so the entry's last word
 * keeps the sum (16 bits) with a mark (48 bits) of all its inputs: the incarnation of the entry, backend and port (the value word
 * without its state), and the address it is sent from. If the mark differs, the sum is computed again. */
AI u64 fast_path_csum(const struct ct_flow *f, const u8 *data, const lb_path *path, const bool snat)
{
	u64 kept = ct_flow_csum(f), mark, sum;
	struct lb_tuple to;
	struct lb_pkt pk;
	lb_addr from;

	if (snat)
		path_snat(path, &from);
	else
		addr_load(&from, data + ETH_HLEN + IP6_SADDR);
	mark = from.w[0] * 0x9E3779B97F4A7C15ULL + from.w[1];
	mark = (mark ^ value_identity(f->value)) * 0x9FB21C651E98DF25ULL;
	if (LIKELY(!((kept ^ mark) >> 16)))
		return kept & 0xffff;
	PKT_REPARSE(data, &pk);
	OPAQUE(path);
	flow_tuple_to(&pk, path, path->port, f->value, &to);
	sum = csum_fold(nat_addresses(&pk, &to) + nat_ports(&pk, &to));
	ct_flow_keep_csum(f, (mark & ~0xffffULL) | sum);
	return sum;
}
#endif

/* Writes a plain packet of an established flow. `snat`, a constant: it is sent from SNAT port `port` (else with the client's
 * source). `sctp`, a constant: it is one of SCTP. */
AI int fast_path_write(lb_ctx *ctx, u8 *data, const lb_path *path, const bool snat, u64 port, const struct ct_flow *f, const bool sctp)
{
	struct lb_tuple to;
	struct lb_pkt pk;
	u64 sum = 0, diff = 0;

#if LB_FAMILY == 6
	if (!HOOK_KERNEL_CSUM && !sctp) {
		sum = fast_path_csum(f, data, path, snat);
		OPAQUE(path);
	}
#endif
	PKT_REPARSE(data, &pk);
	tuple_of(&pk, &to);
	path_addr(path, &to.daddr);
	to.dport = path->port;
	if (snat) {
		path_snat(path, &to.saddr);
		to.sport = port;
	}
#if LB_FAMILY == 4
	diff = nat_addresses(&pk, &to);
	sum = diff + nat_ports(&pk, &to);
#endif
	if (sctp)
		return nat_write_sctp(ctx, data, &pk, &to, snat, diff);
	return nat_write_plain(ctx, data, &pk, &to, snat, diff, sum);
}

/* Writes a plain reply. */
AI int fast_path_write_reply(lb_ctx *ctx, u8 *data, const struct lb_pkt *pk, const struct lb_tuple *to, const bool sctp)
{
	u64 diff = HOOK_KERNEL_CSUM ? 0 : nat_diff(data + ETH_HLEN, pk, to);

	if (sctp)
		return nat_write_sctp(ctx, data, pk, to, 1, diff);
	return nat_write_plain(ctx, data, pk, to, 1, diff, diff + nat_ports(pk, to));
}

/* Values that accompany a packet on the fast path. Clock and CPU are read once, at the start: a helper call spills every register
 * in use to the stack. */
struct fast_path {
	u8 *data;
	u64 len, ifindex, now; /* frame length; receiving device; ticks */
	u8 *row;               /* counters of this CPU */
	u16 flags;             /* PKT_*, of the hook */
	bool sctp;             /* a constant: the packet is one of SCTP, in its own program */
};

AI void fast_path_begin(struct fast_path *q)
{
	q->row = counters();
	OPAQUE(q->row); /* or the compiler moves the call to its use, when more registers are live */
	q->now = now_ticks_in(q->row);
	OPAQUE(q->now);
}

/* A packet of a flow whose replies come to a SNAT port, to its backend. */
AI int fast_path_snat(lb_ctx *ctx, struct fast_path *q, const lb_path *path, u64 meta, const struct ct_flow *f, u64 index, u64 port)
{
	struct nexthop nh;
	struct lb_pkt pk;

	PKT_REPARSE(q->data, &pk);
	if (UNLIKELY(pk.ttl <= 1 || !nexthop_load(META_NEXTHOP(meta), &nh) || macs_write(q->data, &nh)))
		return TO_SLOW_PATH;
	TRACE(NEXT_HOP, OUT_NEXTHOP, NEXTHOP_IFINDEX(&nh));
	TRACE(REASON, REASON_FWD_ESTABLISHED, 0);
	count_in(q->row, REASON_FWD_ESTABLISHED, q->len);
	count_flow_in(q->row, ct_flow_service(f), index, q->len);
	if (fast_path_write(ctx, q->data, path, true, port, f, q->sctp))
		return LB_DROP;
	return send_plain(ctx, q->data, &pk, &nh, q->ifindex);
}

/* A packet of a flow that stays on this node. */
AI int fast_path_local(lb_ctx *ctx, struct fast_path *q, const lb_path *path, const struct ct_flow *f, u64 index)
{
	TRACE(NEXT_HOP, OUT_STACK, 0);
	TRACE(REASON, REASON_FWD_LOCAL, 0);
	count_in(q->row, REASON_FWD_LOCAL, q->len);
	count_flow_in(q->row, ct_flow_service(f), index, q->len);
	return fast_path_write(ctx, q->data, path, false, 0, f, q->sctp) ? LB_DROP : LB_PASS;
}

AI int fast_path_request(lb_ctx *ctx, struct fast_path *q, struct ct_flow *f, bool second)
{
	u64 v = f->value, index = value_backend(v) & CFG(path_mask), port = value_snat_port(v), meta;
	lb_path *path = path_at(index);
	struct lb_pkt pk;

	PKT_REPARSE(q->data, &pk);
	if (!q->sctp)
		pkt_segment_len(ctx, PLAIN_L4(q->data), &pk);
	meta = PATH_META_STORED(path);
	TRACE(FLOW, TRACE_HIT | (u64)ct_flow_service(f) << 32, v);
	TRACE(PATH, index, meta);
	if (UNLIKELY(!value_is_served(v, meta) || over_mtu(pk.l3_len, META_MTU(meta))))
		return TO_SLOW_PATH;
	if (q->sctp && UNLIKELY(value_is_opening(v) || value_is_closing(v))) /* this packet may change that */
		return TO_SLOW_PATH;
	if (UNLIKELY(q->flags & PKT_EGRESS || !ct_refresh_fast(f, &pk, second, q->now)))
		return TO_SLOW_PATH;
	OPAQUE(port);
	if (LIKELY(value_is_snat(v)))
		return fast_path_snat(ctx, q, path, meta, f, index, port);
	return value_forward(v) == FORWARD_LOCAL ? fast_path_local(ctx, q, path, f, index) : TO_SLOW_PATH;
}

/* Loads the service's frontend address. Returns false if the service is removed, or has a range of ports, which is left to
 * service_frontend_slow(). */
AI bool service_frontend(u64 service, lb_addr *vip, u16 *vip_port)
{
	u64 id = (u32)service;
	struct FAMILY(reverse_nat) *r = map_lookup(FAMILY_FD(reverse_nat), &id);

	if (!r || !r->port)
		return false;
	addr_load(vip, &r->address);
	*vip_port = r->port;
	return true;
}

/* The same off the fast path, also for a service with a range of ports: the reply comes from `port` and keeps it. */
AI bool service_frontend_slow(u64 service, u16 port, lb_addr *vip, u16 *vip_port)
{
	u64 id = (u32)service, ranged;
	struct FAMILY(reverse_nat) *r = map_lookup(FAMILY_FD(reverse_nat), &id);

	if (!r || !r->proto)
		return false;
	addr_load(vip, &r->address);
	ranged = SIGN((u64)r->port - 1);
	*vip_port = r->port | (port & (u16)-ranged);
	return true;
}

AI bool is_snat_port(u16 port)
{
	u64 host = NTOHS(port);

	return host >= CFG(reply_port_min) && host <= CFG(reply_port_max);
}

/* A constant for the verifier, which removes the code under it without --strict-source. */
#define STRICT_SOURCE (CFG(flags) & CONFIG_STRICT_SOURCE)

/* Was a reply received by the device of its backend's next hop? */
AI bool reply_is_by_nexthop(const struct snat_view *view, u64 device)
{
	struct nexthop nh;

	nexthop_read(META_NEXTHOP(PATH_META_STORED(path_of(snat_view_backend(view)))), &nh);
	return (nh.rest >> 32 & (NEXTHOP_NO_XDP - 1)) == device;
}

/* A reply to a SNAT port of this node. The fast path stamps the slot every 8 ticks if the flow is established; the slow path learns
 * the next hop. */
AI int fast_path_reply(lb_ctx *ctx, struct fast_path *q, const struct snat_view *view)
{
	struct lb_tuple to;
	struct nexthop nh;
	struct lb_pkt pk;

	TRACE(SNAT_SLOT, TRACE_HIT, snat_view_backend(view) | snat_view_service(view) << 32);
	if (STRICT_SOURCE && !reply_is_by_nexthop(view, q->ifindex))
		return TO_SLOW_PATH;
	if (UNLIKELY(!service_frontend(snat_view_service(view), &to.saddr, &to.sport)))
		return TO_SLOW_PATH;
	PKT_REPARSE(q->data, &pk);
	if (!q->sctp)
		pkt_segment_len(ctx, PLAIN_L4(q->data), &pk);
	if (UNLIKELY(!snat_view_is_stamped(view, q->now))) {
		if (q->sctp || pk.proto == PROTO_TCP || !snat_view_is_stamped_short(view, q->now)) /* only UDP is established with a short lease */
			return TO_SLOW_PATH;
	}
	if (UNLIKELY(pk.ttl <= 1 || !nexthop_load(snat_view_nexthop(view), &nh)))
		return TO_SLOW_PATH;
	if (UNLIKELY(over_mtu(pk.l3_len, reply_mtu(&pk, &nh)) || macs_write(q->data, &nh)))
		return TO_SLOW_PATH;
	TRACE(NEXT_HOP, OUT_NEXTHOP, NEXTHOP_IFINDEX(&nh));
	TRACE(REASON, REASON_FWD_REPLY, 0);
	count_in(q->row, REASON_FWD_REPLY, q->len);
	count_flow_in(q->row, snat_view_service(view), snat_view_backend(view) & CFG(path_mask), q->len);
	PKT_REPARSE(q->data, &pk);
	to.daddr = view->client;
	to.dport = view->client_port;
	if (fast_path_write_reply(ctx, q->data, &pk, &to, q->sctp))
		return LB_DROP;
	return send_plain(ctx, q->data, &pk, &nh, q->ifindex);
}
