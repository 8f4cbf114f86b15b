/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the ways a flow's packets are forwarded to its backend. The mode is chosen once, with the backend
 * (forward_choose), and kept in the flow's value word (ct_value.h: value_forward), so that a flow keeps the mode it was made with.
 * FORWARD_*, kept as u64, are ForwardMode of maps/flow_layout.py.
 * A new mode needs its line there, its condition in forward_choose(), and an answer wherever modes differ:
 * - select_backend() and flow_create_main() make the flow: which modes keep the client's address, which need a SNAT port;
 * - slow_path_resolve_egress() and slow_path_reason() find and count the way of a packet, flow_tuple(), forward_is_local() and fast_path_request()
 *   send requests;
 * - flow_create_yield(), value_awaiting_snat() and direct.h change the mode of a flow that has one;
 * - ct_advance() and ct_find_reply() know who sees replies, ct_entry_clash() and ct_spill() which flows need more than one row for them.
 */
#pragma once
#include "path.h"

/* Chooses the mode of a new flow by its service (direct server return will be a property of it) and its backend's path record.
 * The client's address is kept where replies come back through this node: those of its own backends, and those to its own pods
 * (`from_pod`: the packet came in by a --pod-device, where tc_egress meets the reply by whichever device it came to the node).
 * `ambiguous`: replies could not be told from those of another flow (ct_clash), or the backend would talk to itself; then it
 * needs a SNAT port as well. */
AI u64 forward_choose(const struct lb_service *svc, u64 meta, u64 from_pod, bool ambiguous)
{
	u64 keeping = PATH_LOCAL | (from_pod & 1) * PATH_KEEPS_POD;

	return META_IS(meta, keeping) && !ambiguous ? FORWARD_LOCAL : FORWARD_SNAT;
}
