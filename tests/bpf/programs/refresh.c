/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * A packet of a flow is noted while another CPU notes one too. The frame: the value word as the other CPU left it (8 bytes), as this
 * one had read it before (8), TCP flags, whether the packet is the backend's. The first word becomes what the entry holds in the end.
 */
#include "ct_refresh.h"

int refresh(lb_ctx *ctx)
{
	u8 *data = CTX_DATA(ctx);
	struct ct_flow f = {};
	struct ct_key key = {};
	struct lb_pkt pk = {};
	u32 zero = 0;
	u64 *entry;

	if (data + 32 > CTX_END(ctx))
		return LB_DROP;
	entry = map_lookup(MAPFD(lb_scratch), &zero);
	if (!entry)
		return LB_DROP;
	entry[0] = *(u64 *)data;
	f.value_at = entry;
	f.seen_at = entry + 1;
	f.value = *(u64 *)(data + 8);
	pk.proto = PROTO_TCP;
	pk.tcp_flags = data[16];
	ct_refresh_state(&f, &key, &pk, 0, 1, data[17]);
	*(u64 *)data = entry[0];
	return LB_PASS;
}
