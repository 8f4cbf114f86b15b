/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the choice of the hook a program is compiled for. The build defines one LB_HOOK_*; only files named hook*.h
 * use it (tests/bpf/compiler/test_headers.py). A new hook is a new hook_NAME.h and one line here.
 *
 * Every hook_NAME.h defines:
 *   lb_ctx                  type of the context
 *   LB_PASS, LB_DROP        verdicts: continue as without a program; drop
 *   HOOK_CALLS              number of the map with the hook's tail call slots
 * A hook that sees packets also defines:
 *   CTX_IFINDEX(ctx)        device that received the frame (tc_egress: that sends it), u64
 *   CTX_CAME_BY(ctx, leaving)     device that received the frame, also on egress; 0: the node itself sends it
 *   ctx_checked_backend(ctx, leaving)  backend of a health check of this node, by the mark of its socket; 0: it is none
 *   CTX_LEN(ctx)            bytes of the frame, including the non-linear part
 *   FRAME_LEN(ctx, data, end)     the same, computed from the context's pointers where possible
 *   CTX_GSO_SIZE(ctx)       payload bytes of a segment, 0 if the frame is one packet on the wire
 *   CTX_IS_TAGGED(ctx)      has the device removed the frame's VLAN tag (hardware offload)?
 *   HOOK_HAS_EGRESS         1: the hook also sees outgoing frames (PKT_EGRESS)
 *   HOOK_MARKS_SCOPE        1: the entry point sets the scope (PKT_INTERNAL), lb_scratch.hook_flags pass it on
 *   HOOK_CHECKS_MAC         1: the hook also sees frames for other MAC addresses
 *   HOOK_FINDS_NEIGHBOR     1: a frame can leave by any device, and the kernel finds the MAC address. 0: only by a device that accepts
 *                           frames from this hook, to a known MAC address; another hook sends the rest
 *   HOOK_SENDS_COPIES       1: a frame can be sent several times, each time with its current content
 *   HOOK_KERNEL_CSUM        1: the kernel keeps a checksum state of the frame, which writes must keep valid
 *   HOOK_ASSIGNS_SOCKETS    1: a received frame can be given to a socket of this node. 0: tc_after_xdp gives it
 *   ctx_assign(ctx, sk)            HOOK_ASSIGNS_SOCKETS: gives the frame to a socket; returns 0
 *   ctx_set_mark(ctx, value)       HOOK_ASSIGNS_SOCKETS: the stack routes the frame by this mark
 *   ctx_ready(ctx, leaving, need)  is the frame for the program? Makes `need` bytes linear
 *   ctx_comes_first(ctx, leaving)  can no other hook have translated the frame before?
 *   ctx_linearize(ctx, len)        makes the first `len` bytes linear; packet pointers are void afterwards
 *   ctx_send_back(ctx, leaving)    verdict: sends the frame back where it came from
 *   ctx_send_up(ctx)               verdict: an outgoing frame is received by its device, for the node itself
 *   ctx_redirect_neighbor(ifindex) verdict: HOOK_FINDS_NEIGHBOR
 *   ctx_hand_over(ctx)             verdict: without HOOK_FINDS_NEIGHBOR: leaves an untouched frame to tc_after_xdp (HANDED_OVER)
 *   ctx_forget_hand_over(ctx)      removes the mark of such a frame
 *   ctx_untag(ctx)                 drops the VLAN tags that the device removed from the frame; false: failed
 *   ctx_resize(ctx, keep, front)   truncates the frame to `keep` bytes, then prepends `front` bytes; packet pointers are void afterwards
 *   ctx_csum_partial(ctx, at)      must the device still complete the frame's checksum? `at`: offset of a field that holds 0
 *   ctx_store_hop_limit(ctx, offset, limit)  with HOOK_KERNEL_CSUM: writes an IPv6 hop limit so that the kernel's state stays right
 *   ctx_load(ctx, offset, to, len)         reads bytes anywhere in the frame; returns 0
 *   ctx_store(ctx, offset, from, len)      writes bytes that the frame's own checksums compensate; returns 0
 *   ctx_store_new(ctx, offset, from, len)  writes bytes that no checksum compensates; returns 0
 *   ctx_send_copy(ctx, ifindex)            HOOK_SENDS_COPIES: sends a copy of the frame by a device
 * hook_write.h lists the functions that write and send translated packets.
 */
#pragma once
#include "trace.h"
#include "types.h"
#include "wire.h"

static long (*tail_call)(void *ctx, void *map, u64 slot) = (void *)12;
static long (*redirect_helper)(u32 ifindex, u64 flags) = (void *)23;
static long (*fib_lookup)(void *ctx, void *params, int size, u32 flags) = (void *)69;

/* Verdict: sends the frame by a device. */
AI long redirect_to(u32 ifindex, u64 flags)
{
	TRACE(SEND, ifindex, flags);
	return redirect_helper(ifindex, flags);
}

#define HANDED_OVER 0x6c624f56U /* metadata of a frame that XDP has handed over to tc_after_xdp */

#if LB_IS_DRY /* one instruction: the compiler would keep the field's address, by which the verifier allows no load */
#define CTX_FIELD(ctx, field) \
	({ \
		u64 field_; \
		asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(field_) : "r"(ctx), "i"(__builtin_offsetof(lb_ctx, field)) : "memory"); \
		(u8 *)field_; \
	})
#define CTX_DATA(ctx) CTX_FIELD(ctx, data)
#define CTX_END(ctx) CTX_FIELD(ctx, data_end)
#else
#define CTX_DATA(ctx) ((u8 *)(long)(ctx)->data)
#define CTX_END(ctx) ((u8 *)(long)(ctx)->data_end)
#endif

/* These headers include nothing: an include would be compiled for one hook only. */
#if defined(LB_HOOK_XDP)
#include "hook_xdp.h"
#elif defined(LB_HOOK_TC)
#include "hook_tc.h"
#else
#error "no hook: the build defines LB_HOOK_XDP or LB_HOOK_TC"
#endif
