/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the questions asked before anything else: does this packet concern us at all, and is the frame ours?
 * The filter is lossy: a clear bit is certain, a set bit proves nothing.
 */
#pragma once
#include "maps.h"
#include "parse.h"

/* Position of an address; the same sum as filter_hash() in maps/layout.py. */
AI u64 filter_position(const lb_addr *a)
{
#if LB_FAMILY == 4
	u64 word = a->w[0];
#else
	u64 word = a->w[0] ^ a->w[1];

	word = (word ^ word >> 32) & 0xffffffff;
#endif
	return (word * 0x9E3779B1ULL & 0xffffffff) >> (32 - FILTER_BITS);
}

/* Returns CONCERN_VIP | CONCERN_SNAT. */
AI u64 filter_dst(const lb_addr *a)
{
	u64 p = filter_position(a);

	return RD64((u8 *)MAPVAL(lb_filter) + (p >> 5) * 8) >> ((p & 31) * 2) & 3;
}

AI bool filter_src(const lb_addr *a)
{
	u64 p = filter_position(a);

	return RD64((u8 *)MAPVAL(lb_filter) + FILTER_DST_BYTES + (p >> 6) * 8) >> (p & 63) & 1;
}

/* Returns the first word of a device's record (ifindex 32, flags 16, first half of the MAC 16), 0 if it is not one of ours. */
AI u64 *device_find(u64 ifindex)
{
	u64 *d = 0;

#pragma unroll
	for (u64 n = 0; n < DEVICE_PROBES; n++) {
		u64 *at = (u64 *)((u8 *)MAPVAL(lb_device) + ((ifindex + n) & (DEVICES - 1)) * sizeof(struct lb_device));

		if ((RD64(at) & 0xffffffff) == ifindex) {
			d = at;
			break;
		}
	}
	return d;
}

#define DEVICE_FLAGS(word) ((word) >> 32 & 0xffff)

#ifdef LB_HOOK_XDP
/* Is the frame for this device's MAC address? A device nobody told us about is taken at its word, multicast excepted. */
AI bool frame_is_ours(lb_ctx *ctx, const u8 *data)
{
	u64 *d = device_find(CTX_IFINDEX(ctx));

	if (UNLIKELY(!d))
		return !(*data & 1);
	return !((u32)(RD64(d) >> 48 ^ *(u16 *)data) | ((u32)d[1] ^ *(u32 *)(data + 2)));
}
#endif
