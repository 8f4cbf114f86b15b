/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the context of socket programs (struct bpf_sock_addr): the address that a process passed or receives, the
 * identity of the socket, and verdicts. The address is in network order. An IPv6 socket that uses IPv4 has it as ::ffff:a.b.c.d
 * (`mapped`): then the rules of IPv4 apply, and the last word is the address.
 */
#pragma once
#include "maps.h"
#include "service.h"
#include "wire.h"

typedef struct bpf_sock_addr lb_ctx;
#define SOCK_GO 1
#define SOCK_DENY 0 /* the call fails: EPERM, or the error of set_retval() */
#define TYPE_STREAM 1
#define TYPE_DATAGRAM 2
#define ECONNREFUSED 111
#define MAPPED_HOST 0xffff /* third word of ::ffff:a.b.c.d, host order */

static u64 (*socket_cookie)(void *ctx) = (void *)46;
static u64 (*netns_cookie)(void *ctx) = (void *)122;
static long (*set_retval)(int error) = (void *)187; /* Linux 5.18; for an older kernel the loader removes the call */
static void (*entry6)(void *ctx) = (void *)ENTRY6_CALL;

/* Is it a socket of the agent's network namespace? The programs on their devices serve pods. The record is looked up, not a
 * constant, so that the kernel lists the map among the program's maps: another agent identifies the program's owner by it. */
AI u64 ctx_netns(lb_ctx *ctx)
{
	u32 zero = 0;
	struct lb_config *config = map_lookup(MAPFD(lb_config), &zero);
	u64 cookie = netns_cookie(ctx);

	return config && config->netns_cookie == cookie ? cookie : 0;
}

AI bool ctx_is_mapped(lb_ctx *ctx)
{
	return !(ctx->user_ip6[0] | ctx->user_ip6[1]) && ctx->user_ip6[2] == HTONL(MAPPED_HOST);
}

AI void ctx_addr(lb_ctx *ctx, lb_addr *a, const bool mapped)
{
#if LB_FAMILY == 4
	a->w[0] = mapped ? ctx->user_ip6[3] : ctx->user_ip4;
#else
	u64 high = ctx->user_ip6[1], low = ctx->user_ip6[0];

	a->w[0] = low | high << 32;
	high = ctx->user_ip6[3];
	low = ctx->user_ip6[2];
	a->w[1] = low | high << 32;
#endif
}

AI void ctx_set_addr(lb_ctx *ctx, const lb_addr *a, __be16 port, const bool mapped)
{
#if LB_FAMILY == 4
	if (mapped)
		ctx->user_ip6[3] = a->w[0];
	else
		ctx->user_ip4 = a->w[0];
#else
	ctx->user_ip6[0] = (u32)a->w[0];
	ctx->user_ip6[1] = (u32)(a->w[0] >> 32);
	ctx->user_ip6[2] = (u32)a->w[1];
	ctx->user_ip6[3] = (u32)(a->w[1] >> 32);
#endif
	ctx->user_port = port;
}

/* Returns the protocol of a stream or datagram socket if lbagent balances it, else 0. */
AI u8 ctx_proto(lb_ctx *ctx)
{
	u32 type = ctx->type, proto = ctx->protocol;

	if (proto == PROTO_TCP && type == TYPE_STREAM)
		return PROTO_TCP;
	return proto == PROTO_UDP && type == TYPE_DATAGRAM ? PROTO_UDP : 0;
}

/* Fails the call like a closed port. */
AI int ctx_refuse(lb_ctx *ctx)
{
	set_retval(-ECONNREFUSED);
	return SOCK_DENY;
}
