/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The results of l4.h for the protocol whose number is the frame's first byte, one per byte from the second on.
 */
#define LB_FAMILY 4
#include "l4.h"
#include "hook.h"

int l4_table(lb_ctx *ctx)
{
	u8 *data = CTX_DATA(ctx), proto;
	u64 l4;

	if (data + 16 > CTX_END(ctx))
		return LB_DROP;
	proto = data[0];
	l4 = l4_of(proto);
	data[1] = l4;
	data[2] = l4_number(l4);
	data[3] = l4_hlen(l4);
	data[4] = l4_csum_at(l4);
	data[5] = l4_is_supported(proto);
	data[6] = l4_csum_is_absent(proto, 0);
	data[7] = l4_csum_is_absent(proto, 1);
	data[8] = proto_is_icmp(proto);
	data[9] = proto_is_extension(proto);
	data[10] = L4_FIELD(proto, 14) >> 14;
	data[11] = L4_FIELD(proto, 28) >> 28;
	return LB_PASS;
}
