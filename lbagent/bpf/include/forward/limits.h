/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the limits that stop a request before it is translated or stored: its size and its TTL.
 */
#pragma once
#include "fragmentation.h"
#include "prefilter.h"

#define CONTINUE (-1) /* no verdict yet */

/* A datagram that exceeds the MTU of its path: which side fragments it? */
AI int slow_path_too_large(lb_ctx *ctx, struct lb_scratch *s, u64 mtu, bool here)
{
	if (s->pk.flags & PKT_DF)
		return answer(ctx, s, REASON_ANSWER_TOO_BIG, mtu);
	if (here && !(s->pk.flags & PKT_EGRESS))
		return CONTINUE; /* translated, it goes up, and the stack fragments it on the way to the pod */
	if (!HOOK_SENDS_COPIES)
		return verdict(ctx, REASON_PASS_MTU, ctx_hand_over(ctx));
	return fragment_can(ctx, &s->pk, mtu) ? CONTINUE : answer(ctx, s, REASON_ANSWER_TOO_BIG, mtu);
}

AI int slow_path_limits(lb_ctx *ctx, struct lb_scratch *s, u64 meta, bool here)
{
	int rc = UNLIKELY(over_mtu(s->pk.l3_len, META_MTU(meta))) ? slow_path_too_large(ctx, s, META_MTU(meta), here) : CONTINUE;

	return rc == CONTINUE && !here && UNLIKELY(s->pk.ttl <= 1) ? answer(ctx, s, REASON_ANSWER_TTL, 0) : rc;
}
