/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * IPv6 programs of one hook (LB_HOOK_XDP or LB_HOOK_TC). The entry is a tail call from lb4.c.
 */
#define LB_FAMILY 6
#include "entry_point.h"
#include "programs.h"

#ifdef LB_HOOK_XDP
int call_xdp_0_entry6(lb_ctx *ctx)
{
	return entry(ctx, 0);
}
#else
int call_tc_0_entry6(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();

	return s ? entry(ctx, HOOK_FLAGS(s)) : LB_PASS;
}
#endif
