/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The wrapper under every measurement: BPF_PROG_TEST_RUN repeats on the packet as the last run left it, so this program
 * restores a client's (or a backend's) packet and tail-calls the program under test. Its own cost, tail call included,
 * is measured with `loop` behind it and subtracted. A repetition gets the output frame of the program under test, so the wrapper
 * can act as the backend that answers a flood. */
#include "packet.h"

int undo(struct xdp_md *ctx)
{
	u8 *data = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end;
	struct control *c = CONTROL;
	struct ends t = {};

	if (data + L4_AT + 24 > end)
		return XDP_ABORTED;
	u16 flags = answered(data, c, &t) ? (u16)c->answer : choose(c, &t);
	write_packet(data, c, &t, flags, 0);
	tail_call(ctx, MAPFD(undo_calls), 0);
	return XDP_ABORTED;
}
