/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_L7: a packet of no flow to a Service with an L7 proxy (l7-proxy-port) is given to the proxy's
 * socket on this node. The packet stays as it is, and no flow is made: the kernel has the connection. A mark makes the kernel route
 * the packet to this node itself (net/proxy_route.py).
 *
 * An ICMP error about such a packet comes here from CALL_ICMP, with the quoted one behind the scratch record.
 *
 * XDP has no sockets, and leaves the packet to tc_after_xdp. A packet on its way out cannot be given to a socket: it is refused, as
 * one that meets no proxy is.
 */
#pragma once
#include "icmp_quote.h"
#include "slow_path.h"

#define TCP_STATE_ESTABLISHED 1 /* of a UDP socket: it is connected */
#define TCP_STATE_LISTEN 10
#define THIS_NETNS (~0ULL) /* BPF_F_CURRENT_NETNS */

/* Keeps the compiler from merging the same load of two kinds of pointers, which the verifier rejects. */
#define NOT_MERGED(number) asm volatile("" ::"i"(number))

static void *(*sk_lookup_udp)(void *ctx, void *tuple, u32 size, u64 netns, u64 flags) = (void *)85;
static long (*sk_release)(void *sk) = (void *)86;
static void *(*skc_lookup_tcp)(void *ctx, void *tuple, u32 size, u64 netns, u64 flags) = (void *)99;

/* As struct bpf_sock_tuple has it: by its size the kernel recognises the family. */
struct l7_tuple {
	u32 saddr[ADDR_HALVES], daddr[ADDR_HALVES];
	__be16 sport, dport;
};

typedef WORDS_OF(struct l7_tuple) lb_sock_tuple;

/* Makes the tuple of a packet to this address and port. */
AI void l7_tuple_of(const struct lb_pkt *pk, const lb_addr *to, __be16 port, lb_sock_tuple *t)
{
	CLEAR(t);
	addr_store(t->is.saddr, &pk->saddr);
	addr_store(t->is.daddr, to);
	t->is.sport = pk->sport;
	t->is.dport = port;
}

/* Has the kernel a connection of this packet, whatever its state? Then it finds the socket itself. */
AI bool l7_is_connected(lb_ctx *ctx, const struct lb_pkt *pk)
{
	struct bpf_sock *sk;
	lb_sock_tuple t;
	u64 state;

	l7_tuple_of(pk, &pk->daddr, pk->dport, &t);
	if (pk->proto == PROTO_TCP) {
		sk = skc_lookup_tcp(ctx, &t, sizeof(t.is), THIS_NETNS, 0);
		if (!sk)
			return false;
		state = RD32(&sk->state);
		NOT_MERGED(PROTO_TCP);
		sk_release(sk);
		return state != TCP_STATE_LISTEN;
	}
	sk = sk_lookup_udp(ctx, &t, sizeof(t.is), THIS_NETNS, 0);
	if (!sk)
		return false;
	state = RD32(&sk->state);
	sk_release(sk);
	return state == TCP_STATE_ESTABLISHED;
}

/* Gives the packet to a socket that waits at this address and port for new connections, or for datagrams of all. Returns whether there
 * is one, and the kernel accepts it: before Linux 6.6 none with SO_REUSEPORT. */
AI bool l7_assign(lb_ctx *ctx, const struct lb_pkt *pk, const lb_addr *to, __be16 port)
{
	struct bpf_sock *sk;
	lb_sock_tuple t;
	long error = -1;
	u64 state;

	l7_tuple_of(pk, to, port, &t);
	if (pk->proto == PROTO_TCP) {
		sk = skc_lookup_tcp(ctx, &t, sizeof(t.is), THIS_NETNS, 0);
		if (!sk)
			return false;
		state = RD32(&sk->state);
		NOT_MERGED(PROTO_TCP);
		if (state == TCP_STATE_LISTEN)
			error = ctx_assign(ctx, sk);
		sk_release(sk);
		return !error;
	}
	sk = sk_lookup_udp(ctx, &t, sizeof(t.is), THIS_NETNS, 0);
	if (!sk)
		return false;
	state = RD32(&sk->state);
	if (state != TCP_STATE_ESTABLISHED)
		error = ctx_assign(ctx, sk);
	sk_release(sk);
	return !error;
}

/* The proxy may wait at all addresses, at that of the frontend, or at that of the loopback device. */
AI bool l7_find_proxy(lb_ctx *ctx, const struct lb_pkt *pk, __be16 port)
{
	lb_addr loopback = {};

	if (l7_assign(ctx, pk, &pk->daddr, port))
		return true;
#if LB_FAMILY == 4
	loopback.w[0] = HTONL(0x7f000001);
#else
	loopback.w[1] = 1ULL << 56;
#endif
	return l7_assign(ctx, pk, &loopback, port);
}

/* May the packet begin a connection, by the Service's rules? Each SYN counts until the kernel has its connection. Returns 0 or a reason.
 * Datagrams are not counted, as nothing tells the first one. */
AI u32 l7_admit(const struct lb_scratch *s, const struct lb_service *svc)
{
	struct lb_rules *rules = rules_at(rules_number(s->service));

	if (!SVC_RULES(svc) || !is_syn(&s->pk))
		return 0;
	if (reaches(rules_live(rules) + rules_proxied(rules), RD32(&rules->max_flows)))
		return REASON_DROP_FLOW_LIMIT;
	return rules_rate_admits(rules) ? 0 : REASON_DROP_FLOW_RATE;
}

/* The proxy gets the SYN of a new connection: it counts until the agent has counted the kernel's. */
AI void l7_admitted(const struct lb_scratch *s, const struct lb_service *svc)
{
	if (!LB_IS_DRY && SVC_RULES(svc) && is_syn(&s->pk))
		__sync_fetch_and_add(&rules_at(rules_number(s->service))->admitted, 1);
}

/* An ICMP error that quotes a packet of no flow: the kernel gets it if a frontend with a proxy has sent that (PMTU discovery). */
AI int l7_error(lb_ctx *ctx, struct lb_scratch *s)
{
	struct lb_quote *q = QUOTE_OF(s);
	struct lb_service *svc;
	struct lb_tuple5 t;
	lb_key key;

	if (!HOOK_MARKS_SCOPE)
		s->pk.flags |= device_scope(CTX_IFINDEX(ctx));
	q->pk.flags = s->pk.flags;
	pkt_tuple5(&q->pk, &t);
	svc = service_lookup(&t, &key);
	if (!svc || !(svc->flags2 & SVC2_L7) || !SVC_PROXY_PORT(svc) || s->pk.flags & PKT_EGRESS)
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	s->service = NTOHS(svc->rev_nat_index);
	if (!HOOK_ASSIGNS_SOCKETS)
		return verdict(ctx, REASON_PASS_L7, ctx_hand_over(ctx));
	count(REASON_FWD_L7, CTX_LEN(ctx));
	ctx_set_mark(ctx, L7_MARK);
	return LB_PASS;
}

/* The kernel has the packet next. */
AI int l7_pass(lb_ctx *ctx, struct lb_scratch *s)
{
	u64 len = CTX_LEN(ctx), ids = EVENT_IDS(0, s->service, 0), *ring = 0;
	u8 *row = counters();

	count_reason(row, REASON_FWD_L7, len);
	count_in(row, METRIC_SERVICE + s->service, len);
	if (EVENTS && (is_syn(&s->pk) || SAMPLES))
		ring = forward_event(ctx, &s->pk, REASON_FWD_L7, ids);
	if (FRAMES_AFTER && ring)
		event_after(ctx, &s->pk, ring, ids, REASON_FWD_L7, 0, 0, 0);
	ctx_set_mark(ctx, L7_MARK);
	return LB_PASS;
}

AI int l7_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	struct lb_service *svc;
	struct lb_tuple5 t;
	struct lb_vip *vip;
	lb_key key;
	u32 reason;

	if (!s)
		return LB_DROP;
	if (UNLIKELY(proto_is_icmp(s->pk.proto)))
		return l7_error(ctx, s);
	svc = slow_path_service(ctx, s, &t, &key);
	if (UNLIKELY(!svc))
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS); /* it was removed a moment ago */
	reason = slow_path_admits(&t, svc);
	if (reason)
		return verdict(ctx, reason, reason < REASON_REJECT_NO_BACKEND ? LB_PASS : LB_DROP);
	if (UNLIKELY(!addr_valid_source(&s->pk.saddr)))
		return verdict(ctx, REASON_DROP_MALFORMED, LB_DROP);
	if (!HOOK_ASSIGNS_SOCKETS)
		return verdict(ctx, REASON_PASS_L7, ctx_hand_over(ctx));
	if (s->pk.flags & PKT_EGRESS) {
		TRACE(PROXY, TRACE_PROXY_LEAVES, SVC_PROXY_PORT(svc));
		return slow_path_empty(ctx, s, svc);
	}
	if (LIKELY(l7_is_connected(ctx, &s->pk))) {
		TRACE(PROXY, TRACE_PROXY_CONNECTED, SVC_PROXY_PORT(svc));
		return l7_pass(ctx, s);
	}
	vip = former_leader_of(ctx, &s->pk);
	if (vip)
		return former_leader_send(ctx, &s->pk, vip);
	if (s->pk.flags & PKT_FRAGMENT) /* put together, the datagram has no socket any more */
		return verdict(ctx, REASON_PASS_UNSUPPORTED, LB_PASS);
	reason = l7_admit(s, svc);
	if (reason)
		return rules_refuse(ctx, s, rules_at(rules_number(s->service)), reason);
	if (!l7_find_proxy(ctx, &s->pk, HTONS(SVC_PROXY_PORT(svc)))) {
		TRACE(PROXY, TRACE_PROXY_NONE, SVC_PROXY_PORT(svc));
		return slow_path_empty(ctx, s, svc);
	}
	TRACE(PROXY, TRACE_PROXY_FOUND, SVC_PROXY_PORT(svc));
	l7_admitted(s, svc);
	return l7_pass(ctx, s);
}
