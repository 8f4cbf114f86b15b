/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The second reference: the usual design of a BPF load balancer, well optimised.
 *
 * Connections live in an LRU_HASH, two entries a flow (request and reply direction), and are looked up first of all, with one
 * key that serves both directions. A new flow costs the service look-up (hash), the Maglev table (array of arrays), the
 * backend (array), a free SNAT port (insertion of the reply entry with BPF_NOEXIST) and the insertion of the request entry.
 * Same rewrite, same counters (service and backend, per CPU), same refresh once a second and same states as lbagent's. No
 * look-up in the kernel's FIB: next hops are records, as in lbagent. Options, fragments, VLAN, ICMP are left out, which
 * can only make it faster. */
#include "common.h"

struct tuple { struct addr src, dst; u16 sport, dport; u8 proto, pad[3]; };
struct connection {
	struct addr client; /* reply: the client's address */
	u32 backend;
	u16 port;     /* request: SNAT port, 0 = none; reply: the client's port */
	u16 service;
	u16 last;     /* ticks of about a second */
	u16 nexthop;  /* reply: towards the client */
	u8 state, reply, gen, pad[5];
};
struct service_key { struct addr vip; u16 port; u8 proto, pad[FAMILY == 4 ? 1 : 5]; };
struct service { u32 id, table; };
struct frontend { struct addr vip; u16 port; u16 pad[3]; };
struct backend { struct addr addr, snat; u16 port; u8 gen, flags; u16 nexthop, mtu; };
struct nexthop { u8 dmac[6], smac[6]; u32 ifindex; };
struct counter { u64 packets, bytes; };

enum { NEW, ESTABLISHED, CLOSING };
#define LOCAL 1
#define BACKEND_COUNTERS 65536 /* services first */
#define PORT_MIN 1024
#define PORT_RANGE 28672
#define PORT_TRIES 8

struct packet {
	u8 *data, *end;
	struct tuple t;
	u16 *ip_check, *check;
	u8 *ttl, *l4;
	u8 tcp_flags;
	u32 bytes;
};

inline_fn int parse(struct xdp_md *ctx, struct packet *p)
{
	p->data = (u8 *)(long)ctx->data;
	p->end = (u8 *)(long)ctx->data_end;
	if (p->data + L4_AT + 8 > p->end || *(u16 *)(p->data + 12) != ETHERTYPE)
		return -1;
	p->bytes = p->end - p->data;
	p->l4 = p->data + L4_AT;
#if FAMILY == 4
	if (p->data[14] != 0x45 || *(u16 *)(p->data + 20) & HTONS(0x3fff))
		return -1;
	p->t.proto = p->data[23];
	p->ttl = p->data + 22;
	p->ip_check = (u16 *)(p->data + 24);
	p->t.src.w[0] = *(u32 *)(p->data + SRC_AT);
	p->t.dst.w[0] = *(u32 *)(p->data + DST_AT);
#else
	p->t.proto = p->data[20];
	p->ttl = p->data + 21;
	p->t.src.w[0] = *(u64 *)(p->data + SRC_AT);
	p->t.src.w[1] = *(u64 *)(p->data + SRC_AT + 8);
	p->t.dst.w[0] = *(u64 *)(p->data + DST_AT);
	p->t.dst.w[1] = *(u64 *)(p->data + DST_AT + 8);
#endif
	p->t.sport = *(u16 *)p->l4;
	p->t.dport = *(u16 *)(p->l4 + 2);
	p->tcp_flags = 0;
	if (p->t.proto == TCP) {
		if (p->l4 + 20 > p->end)
			return -1;
		p->tcp_flags = p->l4[13];
		p->check = (u16 *)(p->l4 + 16);
	} else if (p->t.proto == UDP) {
		p->check = (u16 *)(p->l4 + 6);
	} else {
		return -1;
	}
	return 0;
}

inline_fn u16 now_ticks(void) { return jiffies() >> 8; }

inline_fn void count(u32 index, u32 bytes)
{
	struct counter *c = map_lookup(MAPFD(tb_counters), &index);
	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
}

/* Both addresses and ports, both checksums, `hops` off the TTL. UDP's "no checksum" stays as it is. */
inline_fn void rewrite(struct packet *p, struct addr *src, struct addr *dst, u16 sport, u16 dport, u8 hops)
{
	u64 delta = addr_minus(&p->t.src) + addr_sum(src) + addr_minus(&p->t.dst) + addr_sum(dst);
#if FAMILY == 4
	u16 ttl = *(u16 *)p->ttl;
	*p->ttl -= hops;
	*p->ip_check = ~fold(delta + (u16)~*p->ip_check + (u16)~ttl + *(u16 *)p->ttl);
#else
	*p->ttl -= hops;
#endif
	if (p->t.proto == TCP || *p->check)
		*p->check = ~fold(delta + (u16)~*p->check + (u16)~p->t.sport + sport + (u16)~p->t.dport + dport);
#if FAMILY == 4
	*(u32 *)(p->data + SRC_AT) = src->w[0];
	*(u32 *)(p->data + DST_AT) = dst->w[0];
#else
	*(u64 *)(p->data + SRC_AT) = src->w[0];
	*(u64 *)(p->data + SRC_AT + 8) = src->w[1];
	*(u64 *)(p->data + DST_AT) = dst->w[0];
	*(u64 *)(p->data + DST_AT + 8) = dst->w[1];
#endif
	*(u16 *)p->l4 = sport;
	*(u16 *)(p->l4 + 2) = dport;
}

inline_fn int send(struct xdp_md *ctx, struct packet *p, u32 index)
{
	struct nexthop *n = map_lookup(MAPFD(tb_nexthop), &index);
	if (!n || !n->ifindex)
		return XDP_PASS;
	*(u64 *)p->data = *(u64 *)n->dmac;
	*(u32 *)(p->data + 8) = *(u32 *)(n->smac + 2);
	return n->ifindex == ctx->ingress_ifindex ? XDP_TX : redirect(n->ifindex, 0);
}

/* Time stamp once a second, state when it changes: an LRU value is written in place. */
inline_fn void refresh(struct connection *c, struct packet *p)
{
	u16 now = now_ticks();
	if (UNLIKELY(c->last != now))
		c->last = now;
	if (UNLIKELY(p->tcp_flags & (TCP_FIN | TCP_RST)))
		c->state = CLOSING;
	else if (UNLIKELY(c->state == NEW && !(p->tcp_flags & TCP_SYN)))
		c->state = ESTABLISHED;
}

inline_fn int reply(struct xdp_md *ctx, struct packet *p, struct connection *c)
{
	u32 service = c->service;
	struct frontend *f = map_lookup(MAPFD(tb_frontend), &service);
	if (!f || *p->ttl <= 1)
		return XDP_PASS;
	refresh(c, p);
	count(service, p->bytes);
	count(BACKEND_COUNTERS + c->backend, p->bytes);
	struct addr vip = f->vip, client = c->client;
	u32 nexthop = c->nexthop;
	rewrite(p, &vip, &client, f->port, c->port, 1);
	return send(ctx, p, nexthop);
}

inline_fn int request(struct xdp_md *ctx, struct packet *p, u32 index, struct backend *b, u16 service, u16 port)
{
	struct addr src = p->t.src, dst = b->addr;
	u16 sport = p->t.sport;

	if (*p->ttl <= 1 || p->bytes > b->mtu + 14u)
		return XDP_PASS;
	count(service, p->bytes);
	count(BACKEND_COUNTERS + index, p->bytes);
	if (b->flags & LOCAL) {
		rewrite(p, &src, &dst, sport, b->port, 0); /* handed up, not forwarded */
		return XDP_PASS;
	}
	if (port) {
		src = b->snat;
		sport = port;
	}
	u32 nexthop = b->nexthop;
	rewrite(p, &src, &dst, sport, b->port, 1);
	return send(ctx, p, nexthop);
}

inline_fn u64 hash(struct tuple *t)
{
#if FAMILY == 4
	u64 h = ((u64)t->src.w[0] << 32 | (u64)t->sport << 16 | t->proto) ^ 0x9E3779B97F4A7C15ull;
#else
	u64 h = t->src.w[0] ^ (t->src.w[1] * 0x9E3779B97F4A7C15ull) ^ ((u64)t->sport << 16 | t->proto);
#endif
	h *= 0xBF58476D1CE4E5B9ull;
	h ^= h >> 32;
	h *= 0x94D049BB133111EBull;
	return h ^ h >> 29;
}

/* The reply entry reserves the SNAT port: inserting it fails when another flow has that port towards this backend. */
inline_fn u16 reserve(struct packet *p, struct backend *b, struct connection *c, u64 h)
{
	struct tuple back = { .src = b->addr, .dst = b->snat, .sport = b->port, .proto = p->t.proto };
	_Pragma("clang loop unroll(disable)")
	for (u64 i = 0; i < PORT_TRIES; i++) {
		u64 port = PORT_MIN + (((h >> 32) & 0xffffff) + i * 7919) % PORT_RANGE;
		back.dport = HTONS(port);
		if (!map_update(MAPFD(tb_connections), &back, c, 1))
			return back.dport;
		struct connection *held = map_lookup(MAPFD(tb_connections), &back);
		if (held && held->port == c->port && held->client.w[0] == c->client.w[0] && held->service == c->service)
			return back.dport; /* the same flow, whose request entry was evicted */
	}
	return 0;
}

inline_fn int new_flow(struct xdp_md *ctx, struct packet *p)
{
	struct service_key key = { .vip = p->t.dst, .port = p->t.dport, .proto = p->t.proto };
	struct service *s = map_lookup(MAPFD(tb_service), &key);
	if (!s)
		return XDP_PASS;
	u64 h = hash(&p->t);
	u32 table = s->table, entry = ((h & 0xffffffff) * MAGLEV_SIZE) >> 32;
	void *inner = map_lookup(MAPFD(tb_maglev), &table);
	u32 *index = inner ? map_lookup(inner, &entry) : 0;
	if (!index)
		return XDP_DROP;
	u32 backend = *index;
	struct backend *b = map_lookup(MAPFD(tb_backend), &backend);
	if (!b)
		return XDP_DROP;

	struct connection c = { .client = p->t.src, .backend = backend, .port = p->t.sport, .service = s->id };
	c.last = now_ticks();
	c.state = p->tcp_flags & TCP_SYN || p->t.proto == UDP ? NEW : ESTABLISHED;
	c.reply = 1;
	c.gen = b->gen;
	u16 port = 0;
	if (b->flags & LOCAL) {
		struct tuple back = { .src = b->addr, .dst = p->t.src, .sport = b->port, .dport = p->t.sport, .proto = p->t.proto };
		if (map_update(MAPFD(tb_connections), &back, &c, 0))
			return XDP_DROP;
	} else {
		port = reserve(p, b, &c, h);
		if (!port)
			return XDP_DROP;
	}
	c.reply = 0;
	c.port = port;
	if (map_update(MAPFD(tb_connections), &p->t, &c, 0))
		return XDP_DROP;
	return request(ctx, p, backend, b, c.service, port);
}

int textbook(struct xdp_md *ctx)
{
	struct packet p = {};

	if (parse(ctx, &p))
		return XDP_PASS;
	struct connection *c = map_lookup(MAPFD(tb_connections), &p.t);
	if (UNLIKELY(!c))
		return new_flow(ctx, &p);
	if (c->reply)
		return reply(ctx, &p, c);
	u32 index = c->backend;
	struct backend *b = map_lookup(MAPFD(tb_backend), &index);
	if (!b || b->gen != c->gen)
		return XDP_DROP; /* the backend is gone: selecting again is left out */
	refresh(c, &p);
	return request(ctx, &p, index, b, c->service, c->port);
}
