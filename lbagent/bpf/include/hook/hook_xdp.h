/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the primitives of XDP (hook.h describes each). The program sees every frame of its device unchanged, linear,
 * before the kernel processes it.
 */
#pragma once

typedef struct xdp_md lb_ctx;
#define LB_PASS XDP_PASS
#define LB_DROP XDP_DROP
#define HOOK_CALLS MAP_lb_calls_xdp

#define CTX_IFINDEX(ctx) ((u64)(ctx)->ingress_ifindex)
#define CTX_CAME_BY(ctx, leaving) CTX_IFINDEX(ctx)
#define CTX_LEN(ctx) ((u64)(CTX_END(ctx) - CTX_DATA(ctx)))
#define FRAME_LEN(ctx, data, end) ((u64)((end) - (data)))
#define CTX_GSO_SIZE(ctx) 0
#define ctx_checked_backend(ctx, leaving) 0

#define HOOK_HAS_EGRESS 0
#define HOOK_MARKS_SCOPE 0
#define HOOK_CHECKS_MAC 1
#define HOOK_FINDS_NEIGHBOR 0
#define HOOK_SENDS_COPIES 0
#define HOOK_KERNEL_CSUM 0
#define HOOK_ASSIGNS_SOCKETS 0

static long (*adjust_head)(void *ctx, int delta) = (void *)44;
static long (*adjust_meta)(void *ctx, int delta) = (void *)54;
static long (*adjust_tail)(void *ctx, int delta) = (void *)65;

#define ctx_ready(ctx, leaving, need) true
#define ctx_comes_first(ctx, leaving) true
#define ctx_linearize(ctx, len)
#define ctx_send_back(ctx, leaving) XDP_TX
#define ctx_send_up(ctx) XDP_PASS
#define ctx_redirect_neighbor(ifindex) XDP_DROP
#define ctx_forget_hand_over(ctx)
#define CTX_IS_TAGGED(ctx) false
#define ctx_untag(ctx) true /* tags are part of the frame: vlan_untag() */
#define ctx_csum_partial(ctx, at) false
#define ctx_store_hop_limit(ctx, offset, limit) true
#define ctx_assign(ctx, sk) (-1)
#define ctx_set_mark(ctx, value)

/* Marks the frame for tc_after_xdp, which ignores all others: XDP passed those on purpose, translated or not. The mark is metadata;
 * where the driver has no room for it, it is the group bit of the source MAC address, which no sender sets (IEEE 802.3). */
AI int ctx_hand_over(lb_ctx *ctx)
{
	u32 *mark;
	u8 *data;

	if (LIKELY(!adjust_meta(ctx, -(int)sizeof(*mark)))) {
		mark = (u32 *)(long)ctx->data_meta;
		data = CTX_DATA(ctx);
		if ((u8 *)(mark + 1) > data)
			return LB_DROP;
		*mark = HANDED_OVER;
		return LB_PASS;
	}
	data = CTX_DATA(ctx);
	if (data + ETH_HLEN > CTX_END(ctx))
		return LB_DROP;
	data[ETH_SMAC] |= MAC_GROUP;
	return LB_PASS;
}

AI bool ctx_resize(lb_ctx *ctx, u64 keep, u64 front)
{
	u64 have = CTX_LEN(ctx);

	if (keep != have && adjust_tail(ctx, (int)keep - (int)have))
		return false;
	return !front || !adjust_head(ctx, -(int)front);
}

/* XDP sends no copies, so no program needs these. */
AI long ctx_load(lb_ctx *ctx, u64 offset, void *to, u64 len)
{
	return -1;
}

AI long ctx_store(lb_ctx *ctx, u64 offset, const void *from, u64 len)
{
	return -1;
}

AI long ctx_store_new(lb_ctx *ctx, u64 offset, const void *from, u64 len)
{
	return -1;
}

AI long ctx_send_copy(lb_ctx *ctx, u64 ifindex)
{
	return -1;
}
