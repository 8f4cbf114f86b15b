/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the forwarding modes of flows. The mode is selected once, with the backend (forward_choose), and kept in the
 * flow's value word (ct_value.h: value_forward), so that a flow keeps its mode. FORWARD_*, kept as u64, are ForwardMode of
 * maps/flow_layout.py.
 * A new mode needs its line there, its condition in forward_choose(), and a case wherever modes differ:
 * - select_backend() and flow_create_main() make the flow: which modes keep the client's address, which need a SNAT port;
 * - slow_path_resolve_egress() and slow_path_reason() find and count a packet's egress path, flow_tuple(), forward_is_local() and
 *   fast_path_request() send requests;
 * - flow_create_yield(), value_awaiting_snat() and direct.h change the mode of an existing flow;
 * - ct_advance() and ct_find_reply() depend on who sees replies, ct_entry_clash() and ct_spill() on which flows need more than one
 *   entry for them.
 */
#pragma once
#include "path.h"

/* Selects the mode of a new flow by its service (direct server return will be a property of it) and its backend's path record. The
 * client's address is kept where replies return through this node: replies of its own backends, and replies to its own pods
 * (`from_pod`: the packet came in by a --pod-device; tc_egress sees the reply there, whichever device received it). `ambiguous`:
 * replies could not be told from those of another flow (ct_clash), or the backend would talk to itself; then the flow needs a SNAT
 * port, too. */
AI u64 forward_choose(const struct lb_service *svc, u64 meta, u64 from_pod, bool ambiguous)
{
	u64 keeping = PATH_LOCAL | (from_pod & 1) * PATH_KEEPS_POD;

	return META_IS(meta, keeping) && !ambiguous ? FORWARD_LOCAL : FORWARD_SNAT;
}
