/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the entry points of each hook: what is attached. The IPv6 ones become parts of the IPv4 ones
 * (bpf/build/join_entries.py).
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
#else
#error "this hook has no entry point"
#endif
