/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the primitives of the tc hooks, in both directions (hook.h describes each). The context is an skb: its data
 * may be non-linear, one frame may hold several segments, and the device may complete its checksum.
 */
#pragma once

typedef struct __sk_buff lb_ctx;
#define LB_PASS 0 /* TC_ACT_OK */
#define LB_DROP 2 /* TC_ACT_SHOT */
#define TC_NEXT (-1) /* TC_ACT_UNSPEC: continue with the next program of this device */
#define HOOK_CALLS MAP_lb_calls_tc

#define CTX_IFINDEX(ctx) ((u64)(ctx)->ifindex)
#define CTX_CAME_BY(ctx, leaving) ctx_came_by(ctx, leaving)
#define CTX_LEN(ctx) ((u64)(ctx)->len)
#define FRAME_LEN(ctx, data, end) CTX_LEN(ctx)
#define CTX_GSO_SIZE(ctx) ((ctx)->gso_size)
#define CTX_IS_TAGGED(ctx) ((ctx)->vlan_present)

#define HOOK_HAS_EGRESS 1
#define HOOK_MARKS_SCOPE 1
#define HOOK_CHECKS_MAC 0 /* the kernel has compared it: pkt_type */
#define HOOK_FINDS_NEIGHBOR 1
#define HOOK_SENDS_COPIES 1
#define HOOK_KERNEL_CSUM 1
#define HOOK_ASSIGNS_SOCKETS 1

#define PACKET_HOST 0      /* skb->pkt_type: for this node */
#define PACKET_OTHERHOST 3 /* for another MAC address: on egress, a bridge has forwarded it */
#define REDIRECT_INGRESS 1 /* BPF_F_INGRESS */
#define CSUM_RECOMPUTE 1   /* BPF_F_RECOMPUTE_CSUM */
static long (*skb_store)(void *skb, u32 offset, const void *from, u32 len, u64 flags) = (void *)9;
static long (*l3_csum)(void *skb, u32 offset, u64 from, u64 to, u64 flags) = (void *)10;
static long (*l4_csum)(void *skb, u32 offset, u64 from, u64 to, u64 flags) = (void *)11;
static long (*clone_redirect)(void *skb, u32 ifindex, u64 flags) = (void *)13;
static long (*skb_load)(void *skb, u32 offset, void *to, u32 len) = (void *)26;
static long (*skb_vlan_pop)(void *skb) = (void *)19;
static long (*skb_change_tail)(void *skb, u32 length, u64 flags) = (void *)38;
static long (*skb_pull)(void *skb, u32 len) = (void *)39;
static long (*skb_change_head)(void *skb, u32 room, u64 flags) = (void *)43;
static long (*sk_assign)(void *skb, void *sk, u64 flags) = (void *)124;
static long (*redirect_neigh)(u32 ifindex, void *params, int plen, u64 flags) = (void *)152;

/* A hook has seen an outgoing frame when it was received, and took it if it was for this node; the node's own request was
 * translated on another device. */
#define ctx_comes_first(ctx, leaving) (!(leaving) || (ctx)->pkt_type == PACKET_OTHERHOST)
#define ctx_linearize(ctx, n) skb_pull(ctx, CTX_LEN(ctx) < (n) ? CTX_LEN(ctx) : (n))
#define ctx_send_back(ctx, leaving) redirect_to((ctx)->ifindex, (leaving) ? REDIRECT_INGRESS : 0)
#define ctx_redirect_neighbor(ifindex) send_to_neighbor(ifindex)
#define ctx_load(ctx, offset, to, len) skb_load(ctx, offset, to, len)
#define ctx_store(ctx, offset, from, len) skb_store(ctx, offset, from, len, 0)
#define ctx_store_new(ctx, offset, from, len) skb_store(ctx, offset, from, len, CSUM_RECOMPUTE)
#define ctx_send_copy(ctx, ifindex) (LB_IS_DRY ? 0 : clone_redirect(ctx, ifindex, 0))
#define ctx_hand_over(ctx) LB_DROP /* never called */
#define ctx_assign(ctx, sk) (LB_IS_DRY ? 0 : sk_assign(ctx, sk, 0)) /* a test run is at no device: the kernel refuses it there */
#define ctx_set_mark(ctx, value) ((ctx)->mark = (value))
#define VLAN_TAGS_TAKEN 2 /* when the first tag is removed, the kernel moves the second one out of the frame */

AI long send_to_neighbor(u32 ifindex)
{
	TRACE(SEND, ifindex, 0);
	return redirect_neigh(ifindex, 0, 0, 0);
}

/* Both fields are read first: the compiler would select between their addresses, which the verifier rejects. */
AI u64 ctx_came_by(lb_ctx *ctx, bool leaving)
{
	u64 device = CTX_IFINDEX(ctx), in = ctx->ingress_ifindex;

	OPAQUE(device);
	OPAQUE(in);
	return leaving ? in : device;
}

/* Only a process of the node with CAP_NET_ADMIN can mark what the node itself sends. */
AI u64 ctx_checked_backend(lb_ctx *ctx, bool leaving)
{
	u64 mark = ctx->mark, low = mark & ((1ULL << CHECK_MARK_LOW_BITS) - 1);

	if (LIKELY((mark & CHECK_MARK_MASK) != CHECK_MARK) || ctx_came_by(ctx, leaving))
		return 0;
	return low | (mark & 0xff0000) >> 2;
}

/* Accepts only frames for this node without a tag that the device removed: the stack passes tagged ones to their VLAN device. */
AI bool ctx_ready(lb_ctx *ctx, bool leaving, u64 need)
{
	u64 len = CTX_LEN(ctx);

	if (ctx->vlan_present || (ctx->pkt_type != PACKET_HOST && !leaving))
		return false;
	if (UNLIKELY(CTX_DATA(ctx) + need > CTX_END(ctx)))
		skb_pull(ctx, len < need ? len : need);
	return true;
}

/* Has XDP handed the frame over to tc (ctx_hand_over() in hook_xdp.h)? The program that checks this writes no byte of a frame:
 * before a program that writes, the kernel copies a frame that a packet socket (tcpdump) also holds, and the copy loses the
 * metadata. */
AI bool ctx_is_handed_over(lb_ctx *ctx)
{
	const u32 *mark = (const u32 *)(long)ctx->data_meta;
	u8 *data = CTX_DATA(ctx), first;

	if ((u8 *)(mark + 1) <= data && *mark == HANDED_OVER)
		return true;
	if (data + ETH_HLEN > CTX_END(ctx) || LIKELY(!(data[ETH_SMAC] & MAC_GROUP)) || ctx->pkt_type == PACKET_OTHERHOST)
		return false;
	first = data[ETH_SMAC] & ~MAC_GROUP;
	return !skb_store(ctx, ETH_SMAC, &first, sizeof(first), 0);
}

/* Metadata may stay with the frame on its way to another node behind a veth. */
AI void ctx_forget_hand_over(lb_ctx *ctx)
{
	u32 *mark = (u32 *)(long)ctx->data_meta;

	if ((u8 *)(mark + 1) <= (u8 *)CTX_DATA(ctx))
		*mark = 0;
}

AI bool ctx_untag(lb_ctx *ctx)
{
	for (u64 n = 0; n < VLAN_TAGS_TAKEN && ctx->vlan_present; n++)
		if (skb_vlan_pop(ctx))
			return false;
	return true;
}

/* Copies the source MAC address, that of the device it was leaving by, to the destination. */
AI int ctx_send_up(lb_ctx *ctx)
{
	u8 *data = CTX_DATA(ctx), mac[6];

	if (data + ETH_HLEN > CTX_END(ctx))
		return LB_DROP;
	__builtin_memcpy(mac, data + ETH_SMAC, sizeof(mac));
	if (skb_store(ctx, ETH_DMAC, mac, sizeof(mac), 0))
		return LB_DROP;
	return redirect_to(CTX_IFINDEX(ctx), REDIRECT_INGRESS);
}

/* The tail is set even if the length stays: this makes the whole frame linear and writable, and ends segmentation offload. */
AI bool ctx_resize(lb_ctx *ctx, u64 keep, u64 front)
{
	if (skb_change_tail(ctx, keep, 0))
		return false;
	return !front || !skb_change_head(ctx, front, 0);
}

/* A program cannot read directly whether the device completes the checksum (CHECKSUM_PARTIAL), but in that case alone the kernel
 * leaves a checksum without pseudo header unchanged. The field at `at` is written later. Packet pointers are void afterwards. */
AI bool ctx_csum_partial(lb_ctx *ctx, u64 at)
{
	l4_csum(ctx, at, 0, 1, sizeof(u16));
	u8 *field = CTX_DATA(ctx) + at;

	return field + sizeof(u16) <= CTX_END(ctx) && !*(u16 *)field;
}

/* No checksum of the packet compensates a hop limit: the kernel must add the change to a CHECKSUM_COMPLETE sum. */
AI bool ctx_store_hop_limit(lb_ctx *ctx, u64 offset, u8 limit)
{
	return !skb_store(ctx, offset, &limit, 1, CSUM_RECOMPUTE);
}
