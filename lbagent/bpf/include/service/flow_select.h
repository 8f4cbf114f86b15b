/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the selection of a backend for a packet's flow: the first candidate of select.h that is alive and whose
 * replies can be told from those of the client's other flows. It also decides which packets may open a flow.
 */
#pragma once
#include "ct_client.h"
#include "flow_rules.h"
#include "left_datagrams.h"

/* --new-flows syn, a constant for the verifier, which removes the code under it without the flag. What is older than the programs is
 * left to the stack, where another proxy translates it; another backend would only reset a connection. A datagram does not show
 * whether it is older: left_datagrams.h tells. Packets of such conversations from processes of this node were translated before they
 * came here; one that was not begins a conversation. */
#define NEW_FLOWS_SYN (CFG(flags) & CONFIG_NEW_FLOWS_SYN)

AI bool flow_may_begin(const struct lb_pkt *pk, const struct ct_key *flow)
{
	if (!NEW_FLOWS_SYN)
		return true;
	if (pk->proto != PROTO_UDP)
		return is_syn(pk);
	return (pk->flags & PKT_EGRESS) || !left_datagrams_alive(flow);
}

/* The tuple by which a packet's service is looked up. */
AI void pkt_tuple5(const struct lb_pkt *pk, struct lb_tuple5 *t)
{
	t->client = pk->saddr;
	t->frontend = pk->daddr;
	t->client_port = pk->sport;
	t->frontend_port = pk->dport;
	t->proto = pk->proto;
	t->scope = pk->flags & PKT_INTERNAL ? SCOPE_INTERNAL : SCOPE_EXTERNAL;
	t->from_pod = pk->flags / PKT_INTERNAL & ~(pk->flags / PKT_EGRESS) & 1; /* no branch: the verifier counts paths */
	t->from_netns = 0;
}

struct selection {
	u64 backend, meta, forward;
};

/* Is the first candidate the only one? */
#define ONLY_CHECKED 1 /* it is, even if it needs SNAT */
#define ONLY_DRAWN 2   /* it is for select_backend(): where replies would clash, CALL_CHOOSE has others */

/* Selects a backend. Where the client's address is kept, two flows of one client port must not reach one backend: another backend,
 * or SNAT. A pod that is its own backend (hairpin) is reached by SNAT, even if there are other backends; a process of the node has
 * no other source address, and gets another backend. `first`: the first candidate; 0: the slot that the hash selects. `only`:
 * ONLY_*, 0: there are others. `limited`: by `rules`, none of the others may be full. Returns 0 or a reason.
 *
 * One way out with a backend: the verifier follows the code after it once. */
AI u32 select_backend(const struct lb_tuple5 *t, const struct lb_service *svc, lb_key *key,
		      const struct ct_key *flow, u64 hash, u64 now, u64 first, u64 only, const struct lb_rules *rules,
		      u64 limited, struct selection *out)
{
	u64 clashing = 0;

	FORGET(clashing, hash);
	NO_UNROLL
	for (u64 n = 0; n < SELECT_TRIES && !(n && only); n++) {
		u64 id = first ? first : select_slot(t, svc, key, hash, n), meta, differs, clash;
		lb_path *path;
		lb_addr own;

		first = 0;
		FORGET(id, hash);
		path = path_of(id);
		meta = PATH_META(path);
		if (!id || !META_IS(meta, PATH_LIVE))
			continue;
		if (rules && n && limited & backend_is_full(rules, id))
			continue;
		path_addr(path, &own);
		differs = addr_differs(&own, &t->client);
		out->backend = id;
		out->meta = meta;
		out->forward = forward_choose(svc, meta, t->from_pod, !differs && !META_IS(meta, PATH_HOST));
		if (out->forward != FORWARD_LOCAL)
			goto found;
		FORGET(differs, hash);
		FORGET(meta, hash);
		clash = ct_clash(hash, flow, id, now);
		if (!clash && differs)
			goto found;
		clashing = id;
		FORGET(clashing, hash);
	}
	if (!clashing || only == ONLY_DRAWN)
		return REASON_DROP_MISSING_BACKEND;
	out->backend = clashing;
	out->meta = PATH_META(path_of(clashing));
	out->forward = forward_choose(svc, out->meta, t->from_pod, true);
	if (META_IS(out->meta, PATH_HOST))
		return REASON_DROP_REPLY_CLASH;
found:
	FORGET(out->forward, hash);
	return 0;
}
