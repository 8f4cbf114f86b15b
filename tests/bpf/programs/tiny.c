/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The smallest programs that use all the loader does: entry, tail call, settings, a map by descriptor and one by value.
 * GENERATION distinguishes two builds: the entry leaves its number in the scratch map, the tail call compares.
 */
#include "tiny.h"

#ifdef LB_HOOK_XDP
int xdp(struct xdp_md *ctx)
{
	u32 zero = 0;
	u32 *scratch = map_lookup(MAPFD(lb_scratch), &zero);

	if (!scratch)
		return XDP_ABORTED;
	*scratch = GENERATION;
	count(COUNT_ENTRY);
	tail_call(ctx, MAPFD(lb_calls_xdp), 5);
	count(COUNT_FELL_THROUGH);
	return XDP_ABORTED;
}

int call_xdp_5_second(struct xdp_md *ctx)
{
	const struct lb_config *config = MAPVAL(lb_config);
	struct lb_nexthop *nexthop = MAPVAL(lb_nexthop);
	u32 zero = 0;
	u32 *scratch = map_lookup(MAPFD(lb_scratch), &zero);

	if (!scratch)
		return XDP_ABORTED;
	count(*scratch == GENERATION ? COUNT_TAIL : COUNT_MIXED);
	nexthop[3].ifindex = ctx->ingress_ifindex;
	return config->snat_port_min == 2000 ? XDP_DROP : XDP_PASS;
}
#else
int tc_ingress(struct __sk_buff *skb)
{
	skb->mark = GENERATION;
	count(COUNT_ENTRY);
	return skb->ifindex;
}

int tc_after_xdp(struct __sk_buff *skb)
{
	return -1;
}

int tc_egress(struct __sk_buff *skb)
{
	count(COUNT_EGRESS);
	return 0;
}
#endif
