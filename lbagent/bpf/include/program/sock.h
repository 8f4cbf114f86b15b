/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the socket programs: a process of the node uses a frontend's address, and its socket gets the address of a
 * backend, by the rules of packets with internal scope. Packets are not translated then. The kernel defines the return values:
 * SOCK_GO, SOCK_DENY.
 *
 * A frontend with source ranges is left to the packet programs: the address of the socket is not known yet.
 */
#pragma once
#include "hook_sock.h"
#include "select.h"
#include "sock_peer.h"

#define LOOPBACK4 127 /* first byte of 127/8 */

/* Counts atomically: packet programs of this CPU, with the same counters, may interrupt this one. */
AI void count_sock(u64 reason)
{
	struct lb_counter *c = (struct lb_counter *)counters() + reason;

	__sync_fetch_and_add(&c->packets, 1);
}

AI bool addr_is_loopback(const lb_addr *a)
{
#if LB_FAMILY == 4
	return (a->w[0] & HTONL(0xff000000)) == HTONL((u32)LOOPBACK4 << 24);
#else
	return !a->w[0] && a->w[1] == (u64)HTONL(1) << 32;
#endif
}

AI void sock_tuple(lb_ctx *ctx, struct lb_tuple5 *t, u64 netns, u8 proto, const bool mapped)
{
	__builtin_memset(t, 0, sizeof(*t));
	t->client.w[0] = netns;
	t->from_netns = 1;
	ctx_addr(ctx, &t->frontend, mapped);
	t->frontend_port = ctx->user_port;
	t->proto = proto;
	t->scope = SCOPE_INTERNAL;
}

/* Finds the service; a NodePort and a HostPort are also found at loopback addresses, by the entry for any address of the node. */
AI struct lb_service *sock_service(struct lb_tuple5 *t, lb_key *key)
{
	struct lb_service *svc = service_lookup(t, key);

	if (svc || !addr_is_loopback(&t->frontend))
		return svc;
	__builtin_memset(&t->frontend, 0, sizeof(t->frontend));
	return service_lookup(t, key);
}

/* Returns a backend for a new conversation; 0: there is none. */
AI u64 sock_select(const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key, u64 hash)
{
	u64 preferred;

	if (!svc->count)
		return 0;
	preferred = select_preferred(t, svc);
	NO_UNROLL
	for (u64 n = 0; n < SELECT_TRIES; n++) {
		u64 id = preferred && !n ? preferred : select_slot(t, svc, key, hash, n);

		if (id && META_IS(PATH_META(path_of(id)), PATH_LIVE)) {
			affinity_update(t, svc, id);
			return id;
		}
	}
	return 0;
}

AI int sock_refuse(lb_ctx *ctx, u32 reason)
{
	count_sock(reason);
	return ctx_refuse(ctx);
}

/* Is the frontend for this program? Not with source ranges or a proxy, nor an address while it is not redirected. */
AI bool sock_takes(const struct lb_service *svc)
{
	if (svc->flags2 & SVC2_LOCAL_REDIRECT && svc->flags2 & SVC2_LOOPBACK)
		return false;
	return !(svc->flags & SVC_SOURCE_RANGE) && !(svc->flags2 & SVC2_L7);
}

/* Stores the frontend of a backend's address for a UDP socket, unless it is stored already. */
AI void sock_remember(u64 cookie, const lb_addr *to, __be16 port, u64 backend, const lb_addr *vip, __be16 vip_port)
{
	lb_sock_value *known = sock_find(cookie, to, port, SOCK_REVERSE);
	lb_addr was;

	if (known)
		addr_load(&was, &known->address);
	if (!known || known->port != vip_port || known->backend_id != backend || !addr_eq(&was, vip))
		sock_put(cookie, to, port, SOCK_REVERSE, backend, vip, vip_port);
}

/* Gives the socket the address of a backend, and stores the frontend that this address stands for. */
AI int sock_translate(lb_ctx *ctx, u64 cookie, const lb_addr *vip, __be16 vip_port, u64 backend, const bool mapped)
{
	lb_path *path = path_of(backend);
	__be16 port = meta_port(PATH_META(path), vip_port);
	lb_addr to;

	path_addr(path, &to);
	if (ctx_proto(ctx) == PROTO_TCP)
		stream_put(cookie, &to, port, vip, vip_port);
	else
		sock_remember(cookie, &to, port, backend, vip, vip_port);
	ctx_set_addr(ctx, &to, port, mapped);
	count_sock(REASON_FWD_SOCKET);
	return SOCK_GO;
}

AI int sock_connect(lb_ctx *ctx, const bool mapped)
{
	u64 netns = ctx_netns(ctx), hash, backend;
	u8 proto = ctx_proto(ctx);
	struct lb_service *svc;
	struct lb_tuple5 t;
	lb_addr vip;
	lb_key key;

	if (!netns || !proto)
		return SOCK_GO;
	sock_tuple(ctx, &t, netns, proto, mapped);
	vip = t.frontend;
	svc = sock_service(&t, &key);
	if (!svc)
		return service_wildcard(&t) ? sock_refuse(ctx, REASON_REJECT_UNDEFINED_PORT) : SOCK_GO;
	if (!sock_takes(svc))
		return SOCK_GO;
	hash = random32();
	hash = hash << 32 | random32();
	t.client_port = hash;
	backend = sock_select(&t, svc, &key, hash);
	if (!backend)
		return sock_refuse(ctx, REASON_REJECT_NO_BACKEND);
	return sock_translate(ctx, socket_cookie(ctx), &vip, t.frontend_port, backend, mapped);
}

/* Each datagram of an unconnected socket. The socket keeps its backend behind a frontend, like the flow of a packet. */
AI int sock_sendmsg(lb_ctx *ctx, const bool mapped)
{
	u64 netns = ctx_netns(ctx), cookie, backend;
	struct lb_service *svc;
	struct lb_tuple5 t;
	lb_addr vip;
	lb_key key;

	if (!netns || ctx_proto(ctx) != PROTO_UDP)
		return SOCK_GO;
	sock_tuple(ctx, &t, netns, PROTO_UDP, mapped);
	vip = t.frontend;
	svc = sock_service(&t, &key);
	if (!svc)
		return service_wildcard(&t) ? sock_refuse(ctx, REASON_REJECT_UNDEFINED_PORT) : SOCK_GO;
	if (!sock_takes(svc))
		return SOCK_GO;
	cookie = socket_cookie(ctx);
	t.client_port = cookie;
	backend = sock_backend(sock_find(cookie, &vip, t.frontend_port, SOCK_CHOICE));
	if (!backend) {
		backend = sock_select(&t, svc, &key, cookie * GOLDEN);
		if (!backend)
			return sock_refuse(ctx, REASON_REJECT_NO_BACKEND);
		sock_put(cookie, &vip, t.frontend_port, SOCK_CHOICE, backend, &vip, t.frontend_port);
	}
	return sock_translate(ctx, cookie, &vip, t.frontend_port, backend, mapped);
}

/* The sender of a datagram, or the peer of a socket: the process gets the frontend that it used. */
AI int sock_show(lb_ctx *ctx, const bool mapped)
{
	u8 proto = ctx_proto(ctx);
	__be16 port = ctx->user_port;
	lb_sock_value *known;
	lb_addr peer;

	if (!ctx_netns(ctx) || !proto)
		return SOCK_GO;
	ctx_addr(ctx, &peer, mapped);
	if (proto == PROTO_TCP) {
		if (stream_show(socket_cookie(ctx), &peer, &port))
			ctx_set_addr(ctx, &peer, port, mapped);
		return SOCK_GO;
	}
	known = sock_find(socket_cookie(ctx), &peer, port, SOCK_REVERSE);
	if (known) {
		addr_load(&peer, &known->address);
		ctx_set_addr(ctx, &peer, known->port, mapped);
	}
	return SOCK_GO;
}

#if LB_FAMILY == 4
int connect4(lb_ctx *ctx)
{
	return sock_connect(ctx, false);
}

int sendmsg4(lb_ctx *ctx)
{
	return sock_sendmsg(ctx, false);
}

int recvmsg4(lb_ctx *ctx)
{
	return sock_show(ctx, false);
}

int getpeername4(lb_ctx *ctx)
{
	return sock_show(ctx, false);
}

/* An IPv6 socket: the rules of IPv4 if it uses IPv4, else the IPv6 program behind this one. */
#define OTHER_FAMILY(ctx) \
	if (!ctx_is_mapped(ctx)) { \
		entry6(ctx); \
		__builtin_unreachable(); \
	}
#else
#define OTHER_FAMILY(ctx)
#endif

int FAMILY_ENTRY(connect6)(lb_ctx *ctx)
{
	OTHER_FAMILY(ctx)
	return sock_connect(ctx, true);
}

int FAMILY_ENTRY(sendmsg6)(lb_ctx *ctx)
{
	OTHER_FAMILY(ctx)
	return sock_sendmsg(ctx, true);
}

int FAMILY_ENTRY(recvmsg6)(lb_ctx *ctx)
{
	OTHER_FAMILY(ctx)
	return sock_show(ctx, true);
}

int FAMILY_ENTRY(getpeername6)(lb_ctx *ctx)
{
	OTHER_FAMILY(ctx)
	return sock_show(ctx, true);
}
