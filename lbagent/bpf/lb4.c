/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * IPv4 programs of one hook (LB_HOOK_XDP or LB_HOOK_TC), and the entry points of both families: frames of IPv6 go on with
 * the entry points of lb6.c, which bpf/build/join_entries.py puts behind these.
 */
#define LB_FAMILY 4
#include "entry.h"
#include "programs.h"

#ifdef LB_HOOK_XDP
int xdp(lb_ctx *ctx)
{
	return entry(ctx, 0);
}
#else
int tc_ingress(lb_ctx *ctx)
{
	return entry(ctx, 0);
}

int tc_egress(lb_ctx *ctx)
{
	return entry(ctx, PKT_EGRESS | PKT_INTERNAL);
}
#endif
