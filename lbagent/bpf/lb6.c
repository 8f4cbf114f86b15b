/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * IPv6 programs of one hook (LB_HOOK_XDP or LB_HOOK_TC). The entry points here become parts of those in lb4.c (bpf/build/join_entries.py).
 */
#define LB_FAMILY 6
#include "entry.h"
#include "programs.h"

#ifdef LB_HOOK_XDP
int xdp6(lb_ctx *ctx)
{
	return entry(ctx, 0);
}
#else
int tc_ingress6(lb_ctx *ctx)
{
	return entry(ctx, 0);
}

int tc_egress6(lb_ctx *ctx)
{
	return entry(ctx, PKT_EGRESS | PKT_INTERNAL);
}
#endif
