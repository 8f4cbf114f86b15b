/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * IPv4 programs of one hook (LB_HOOK_XDP or LB_HOOK_TC). The entry points of both families are here; frames of IPv6 go on in
 * lb6.c by tail call. Programs named call_HOOK_N_NAME are put into slot N of lb_calls_HOOK by the loader.
 */
#define LB_FAMILY 4
#include "entry_point.h"
#include "reply.h"

#ifdef LB_HOOK_XDP
int xdp(struct xdp_md *ctx)
{
	return entry(ctx, 0);
}
#else
int tc_ingress(struct __sk_buff *ctx)
{
	return entry(ctx, 0);
}
#endif

int CALL_NAME(3, flow4)(lb_ctx *ctx)
{
	return flow_main(ctx);
}

int CALL_NAME(5, create4)(lb_ctx *ctx)
{
	return create_main(ctx);
}

int CALL_NAME(11, reply4)(lb_ctx *ctx)
{
	return reply_main(ctx);
}
