/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program CALL_EVENT: the record of a refusal, a drop, or a packet that is passed although it concerns a
 * service. A program of its own, as a verdict has many places.
 */
#pragma once
#include "scratch.h"

AI int event_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	u64 *ring;

	if (!s)
		return LB_DROP;
	ring = EVENTS ? event_ring() : 0;
	if (EVENTS && ring && event_admitted(ring)) {
		event_fill(ctx, &s->pk, ring, EVENT_IDS(s->backend & CFG(path_mask), s->service, 0));
		event_publish(ring, s->event_reason);
	}
	return s->event_verdict;
}
