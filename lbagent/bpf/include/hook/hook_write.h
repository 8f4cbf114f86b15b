/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the choice of how a hook writes and sends translated packets. A hook that sees packets has a
 * hook_write_NAME.h, which defines:
 *   nat_write(ctx, data, end, pk, to, hops)
 *       writes the tuple `to` into the packet `pk` describes and subtracts `hops` (0 or 1) from its TTL; `data`, `end`: those of
 *       the context. Returns -1 if the frame is too short. Of an SCTP packet the checksum is as before: sctp_go() follows
 *   nat_write_plain(ctx, data, pk, to, hops, diff, sum)
 *       the same for a plain frame of PLAIN_HLEN bytes or more, whose L4 checksum changes by `sum`, its addresses by `diff`; with
 *       HOOK_KERNEL_CSUM neither is used or needs to be computed
 *   nat_write_sctp(ctx, data, pk, to, hops, diff)
 *       the same for a plain frame of SCTP, with its checksum
 *   NEXTHOP_IFINDEX(nh), nexthop_is_usable(nh)
 *       the device of a next hop; may this hook send to it? A retired one has no device
 *   macs_write(data, nh)
 *       writes a next hop's MAC addresses into a plain frame before anything else, so that no registers hold them; returns 0
 *   send_plain(ctx, data, pk, nh, ifindex)
 *       verdict: sends a plain frame that came in by `ifindex`, after macs_write()
 *   out_macs(ctx, nh)
 *       writes a next hop's MAC addresses into any frame; returns 0. Packet pointers are void afterwards
 *   out_send(ctx, data, end, pk, nh)
 *       verdict: writes the MAC addresses and sends any frame, without VLAN tags if it leaves by another device
 */
#pragma once
#include "nat.h"
#include "path.h"

/* These headers include nothing, like those of hook.h. */
#if defined(LB_HOOK_XDP)
#include "hook_write_xdp.h"
#elif defined(LB_HOOK_TC)
#include "hook_write_tc.h"
#else
#error "this hook writes no packets"
#endif
