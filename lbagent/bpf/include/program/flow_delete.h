/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program behind `lbagent flow delete`, which runs it by BPF_PROG_TEST_RUN. It deletes flows that the command
 * has read (ct_delete.h).
 *
 * With `reset` a TCP flow keeps its entry until the time-out of its state, without backend and port. Its client's next packet takes
 * the slow path, which answers RST because the backend is gone (slow_path_established()); a SYN opens a new connection.
 *
 * The run's data is struct lb_flow_delete, then `count` records of struct lb_flow_deleted. One run does one of them (use the kernel's
 * `repeat`), advances `next`, and adds 1 to `deleted` if the flow was deleted.
 */
#pragma once
#include "ct_delete.h"

AI int flow_delete_main(lb_ctx *ctx)
{
	struct lb_flow_delete *run = (struct lb_flow_delete *)CTX_DATA(ctx);
	struct lb_flow_deleted *record;
	struct ct_deletion d;
	u64 n, position;

	if ((u8 *)(run + 1) > CTX_END(ctx) || MIGRATING_FLOWS || MIGRATING_SNAT)
		return 0;
	n = run->next;
	if (n >= run->count || n >= FLOW_DELETE_RECORDS)
		return 0;
	record = (struct lb_flow_deleted *)(run + 1) + n;
	OPAQUE(record); /* or the compiler computes the pointer again after the check */
	if ((u8 *)(record + 1) > CTX_END(ctx))
		return 0;
	run->next = n + 1;
	ct_key_of_words(&d.key, record->key0, record->key1, record->key2, record->key3, record->key4);
	d.value = record->value;
	d.idle_over = run->idle_over;
	d.reset = run->reset;
	d.now = now_ticks();
	position = record->position;
	run->deleted += position == FLOW_DELETE_SPILLED ? ct_delete_spilled(&d) : ct_delete_entry(position, &d);
	return 0;
}
