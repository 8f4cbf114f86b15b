/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the choice of the hook a program is compiled for. The build defines one LB_HOOK_*; only files named hook*.h
 * ask for it (tests/bpf/compiler/test_headers.py). A new hook is a new hook_NAME.h and one line here.
 *
 * Every hook_NAME.h gives:
 *   lb_ctx                  type of the context
 *   LB_PASS, LB_DROP        verdicts: go on as if there were no program; drop
 *   HOOK_CALLS              number of the map with the hook's tail call slots
 * A hook that sees packets gives as well:
 *   CTX_IFINDEX(ctx)        device the frame came in by (tc_egress: leaves by), u64
 *   CTX_CAME_BY(ctx, leaving)     device the frame came in by, also where it leaves; 0: the node itself made it
 *   CTX_LEN(ctx)            bytes of the frame, with what is not linear
 *   FRAME_LEN(ctx, data, end)     the same, of the context's pointers where these are at hand
 *   CTX_GSO_SIZE(ctx)       payload bytes of a segment, 0 if the frame is one packet on the wire
 *   CTX_IS_TAGGED(ctx)      is the frame of a VLAN whose tag the device took out of it?
 *   HOOK_HAS_EGRESS         1: frames on their way out come here too (PKT_EGRESS)
 *   HOOK_MARKS_SCOPE        1: the entry notes the scope (PKT_INTERNAL) and lb_scratch.hook_flags hand it on
 *   HOOK_CHECKS_MAC         1: frames for another MAC address come here too
 *   HOOK_FINDS_NEIGHBOR     1: a frame can leave by any device, and the kernel finds the MAC address. 0: only by a device that takes
 *                           frames from this hook, to a known MAC address; what cannot leave so is left to another hook
 *   HOOK_SENDS_COPIES       1: a frame can be sent several times, each time as it is then
 *   HOOK_KERNEL_CSUM        1: the kernel keeps a checksum state of the frame, which writes must not contradict
 *   ctx_ready(ctx, leaving, need)  is the frame one for the program, and (made) linear for `need` bytes?
 *   ctx_comes_first(ctx, leaving)  is the frame one that no other hook can have translated on its way to here?
 *   ctx_linearize(ctx, len)        makes the first `len` bytes linear; packet pointers are void afterwards
 *   ctx_send_back(ctx, leaving)    verdict: sends the frame back where it came from
 *   ctx_send_up(ctx)               verdict: a frame that was leaving comes in by its device, for the node itself
 *   ctx_redirect_neighbor(ifindex) verdict: HOOK_FINDS_NEIGHBOR
 *   ctx_hand_over(ctx)             verdict: without HOOK_FINDS_NEIGHBOR: leaves an untouched frame to tc_after_xdp (HANDED_OVER)
 *   ctx_forget_hand_over(ctx)      takes the mark of such a frame away
 *   ctx_untag(ctx)                 takes off the VLAN tags that the device took out of the frame; false: failed
 *   ctx_resize(ctx, keep, front)   cuts the frame to `keep` bytes, then puts `front` bytes before it; packet pointers are void afterwards
 *   ctx_csum_partial(ctx, at)      must the device still complete the frame's checksum? `at`: offset of a field that holds 0
 *   ctx_store_hop_limit(ctx, offset, limit)  with HOOK_KERNEL_CSUM: writes an IPv6 hop limit so that the kernel's state stays right
 *   ctx_load(ctx, offset, to, len)         reads bytes wherever they lie in the frame; returns 0
 *   ctx_store(ctx, offset, from, len)      writes bytes that the frame's own checksums make up for; returns 0
 *   ctx_store_new(ctx, offset, from, len)  writes bytes that nothing makes up for; returns 0
 *   ctx_send_copy(ctx, ifindex)            HOOK_SENDS_COPIES: sends a copy of the frame by a device
 * hook_write.h lists what writes and sends translated packets.
 */
#pragma once
#include "types.h"
#include "wire.h"

static long (*tail_call)(void *ctx, void *map, u64 slot) = (void *)12;
static long (*redirect_to)(u32 ifindex, u64 flags) = (void *)23;
static long (*fib_lookup)(void *ctx, void *params, int size, u32 flags) = (void *)69;

#define HANDED_OVER 0x6c624f56U /* metadata of a frame that XDP has left to tc_after_xdp */

#define CTX_DATA(ctx) ((u8 *)(long)(ctx)->data)
#define CTX_END(ctx) ((u8 *)(long)(ctx)->data_end)

/* These headers include nothing: an include would be compiled for one hook only. */
#if defined(LB_HOOK_XDP)
#include "hook_xdp.h"
#elif defined(LB_HOOK_TC)
#include "hook_tc.h"
#else
#error "no hook: the build defines LB_HOOK_XDP or LB_HOOK_TC"
#endif
