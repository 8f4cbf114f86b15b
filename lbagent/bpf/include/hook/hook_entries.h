/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the entry points of each hook: the programs that are attached. The IPv6 ones become parts of the IPv4 ones
 * (bpf/compiler/join_entries.py).
 */
#pragma once
#include "entry.h"

#if defined(LB_HOOK_XDP)
int FAMILY_ENTRY(xdp)(lb_ctx *ctx)
{
	return entry(ctx, 0);
}
#elif defined(LB_HOOK_TC)
int FAMILY_ENTRY(tc_ingress)(lb_ctx *ctx)
{
	return entry(ctx, 0);
}

int FAMILY_ENTRY(tc_egress)(lb_ctx *ctx)
{
	return entry(ctx, PKT_EGRESS | PKT_INTERNAL);
}

/* Behind XDP on the same device: processes the frames that XDP has handed over, of both families (the IPv4 entry point sees every
 * frame first). */
int FAMILY_ENTRY(tc_after_xdp)(lb_ctx *ctx)
{
	if (LB_FAMILY == 4) {
		if (!ctx_is_handed_over(ctx))
			return TC_NEXT;
		if (ANNOUNCES) {
			u8 *data = CTX_DATA(ctx);

			if (data + ETH_HLEN <= CTX_END(ctx) && announce_is_asked(data))
				return announce_or_pass(ctx, 0);
		}
		if (frame_type(ctx) == ETH_IP6) {
			entry6(ctx);
			__builtin_unreachable();
		}
	}
	return entry_call(ctx, device_scope(CTX_IFINDEX(ctx)) | PKT_HANDED_OVER, FAMILY_CALL(CALL_PARSE_FULL));
}
#else
#error "this hook has no entry point"
#endif
