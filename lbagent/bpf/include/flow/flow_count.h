/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the counts of live flows of the Services that have rules (service/flow_rules.h): of each Service, over all its
 * frontends, and of each backend. A count changes with the compare-and-swap that makes a flow live or ends it, so it follows from the
 * table at any instant: when the flow gets its entry, when both sides have sent FIN or one a RST, when its entry is taken or freed. The
 * sweeper counts the same flows, and the agent corrects what was there before the rules, or what two CPUs changed at one instant
 * (bpf/run/rule_counts.py). Flows of the spill map do not count.
 */
#pragma once
#include "ct_value.h"
#include "path.h"

/* The record of a Service's rules, by the id of a frontend; record 0, which is never written, stands for no rules. */
AI u64 rules_number(u64 service)
{
	return RD16((u16 *)MAPVAL(lb_rules_of) + (service & (SERVICE_IDS - 1)));
}

AI struct lb_rules *rules_at(u64 number)
{
	return (struct lb_rules *)MAPVAL(lb_rules) + (number & (RULES - 1));
}

/* Returns the id of a backend's first record: those of extra SNAT addresses are the same backend. */
AI u64 backend_counted(u64 backend)
{
	if (EXTRA_SNAT_SOURCES)
		backend -= META_EXTRA_SNAT(PATH_META(path_of(backend))) * CFG(extra_snat_stride);
	return backend & CFG(path_mask);
}

AI struct lb_backend_flows *backend_flows(u64 backend)
{
	return (struct lb_backend_flows *)MAPVAL(lb_backend_flows) + backend_counted(backend);
}

/* A flow of this frontend to the backend of `value` is live from now on. */
AI void flow_opened(u64 service, u64 value)
{
	u64 number = rules_number(service);

	if (LB_IS_DRY || LIKELY(!number))
		return;
	__sync_fetch_and_add(&rules_at(number)->opened, 1);
	__sync_fetch_and_add(&backend_flows(value_backend(value))->live, 1);
}

/* It is no longer. */
AI void flow_closed(u64 service, u64 value)
{
	u64 number = rules_number(service);

	if (LB_IS_DRY || LIKELY(!number))
		return;
	__sync_fetch_and_add(&rules_at(number)->closed, 1);
	__sync_fetch_and_add(&backend_flows(value_backend(value))->live, (u64)-1);
}

/* The value of an entry was `before` until now. It keeps its backend, if it has one. */
AI void flow_turned(u64 service, u64 before, u64 after)
{
	u64 was, is;

	if (LIKELY(!rules_number(service))) /* before the comparison: a load instead of 30 instructions */
		return;
	was = value_is_live(before);
	is = value_is_live(after);
	if (was == is)
		return;
	if (is)
		flow_opened(service, after);
	else
		flow_closed(service, before);
}
