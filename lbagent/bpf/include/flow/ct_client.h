/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains look-ups by the client alone: all flows of one client address, port and protocol lie in the same two buckets,
 * whatever their frontend. So a local backend's reply finds its flow, and a new flow whose replies would be ambiguous is detected before
 * it is made.
 */
#pragma once
#include "ct_find.h"

/* Rank of a flow found for a backend's reply, lower is better: a flow whose backend is served, else the most recent one of those whose
 * backend is gone (its client must still receive that backend's segments, to answer them). The same port may have a new flow to the
 * same address. */
#define REPLY_OF_SERVED 1
#define REPLY_OF_GONE 2 /* and above, by idleness */
#define REPLY_UNKNOWN 0x40000

/* Without a branch: else the verifier follows the rest of the look-up for each outcome. */
AI u64 reply_rank(u64 *e, u64 value, u64 meta, u64 now)
{
	u64 gone = (value_backend_differs(value, meta) + 0x1ff) >> 9;

	OPAQUE(gone);
	return REPLY_OF_SERVED + gone * (REPLY_OF_GONE - REPLY_OF_SERVED + ct_entry_idleness(e, value, now));
}

/* Finds the flow of a backend's reply: its client and `snat_port` (network order; 0: FORWARD_LOCAL) are the caller's, its backend is the
 * packet's source. `found`: the rank of the flow that `f` already has; a worse one does not replace it. */
AI u64 ct_find_reply(u64 *bucket, bool second, const struct ct_key *key, const struct lb_pkt *pk, u16 snat_port, u64 now, u64 found,
		     struct ct_flow *f, lb_addr *vip, u16 *vip_port)
{
	NO_UNROLL
	for (u64 w = 0; w < FLOW_WAYS; w++) {
		u64 way = w, in_second = second, meta, value, rank;
		lb_path *path;
		lb_addr from, to;
		u16 to_port;

		if (!ct_entry_match_client(ct_entry_at(bucket, w), key, &value, &to, &to_port) || value_forward_word(value) != snat_port)
			continue;
		path = path_of(value_backend(value));
		meta = PATH_META(path);
		path_addr(path, &from);
		if (!addr_eq(&from, &pk->saddr) || meta_port(meta, to_port) != pk->sport || !value_knows_path(value, meta))
			continue;
		if (EXTRA_SNAT_SOURCES && snat_port && !path_between(path, &pk->saddr, &pk->daddr)) /* the same port of another source address */
			continue;
		rank = reply_rank(ct_entry_at(bucket, w), value, meta, now);
		if (rank >= found)
			continue;
		FORGET(way, value);
		FORGET(in_second, value);
		ct_flow_at(f, ct_entry_at(bucket, way & (FLOW_WAYS - 1)));
		f->value = value;
		f->second = in_second & 1;
		*vip = to;
		*vip_port = to_port;
		found = rank;
		FORGET(found, value);
		if (found == REPLY_OF_SERVED)
			return found;
	}
	return found;
}

/* Has this client a flow of FORWARD_LOCAL to this backend through another frontend? */
AI u64 ct_clash_in(u64 *bucket, const struct ct_key *key, u64 backend)
{
	u64 clash = 0;

#pragma unroll
	for (u64 w = 0; w < FLOW_WAYS; w++)
		clash |= ct_entry_clash(ct_entry_at(bucket, w), key, backend) >> 63;
	return clash;
}

/* Would the replies of another flow and those of the flow `key` to this backend be the same packets? */
AI u64 ct_clash(u64 hash, const struct ct_key *key, u64 backend, u64 now)
{
	u64 *b = ct_bucket(hash), clash = ct_clash_in(b, key, backend);

	if (UNLIKELY(ct_second_in_use(b, now)))
		clash |= ct_clash_in(ct_bucket(hash >> 32), key, backend);
	if (MIGRATING_FLOWS)
		clash |= ct_clash_in(ct_old_bucket(hash), key, backend) | ct_clash_in(ct_old_bucket(hash >> 32), key, backend);
	return clash;
}

/* Does the backend accept a connection while the client's flow to it closes? The SYN of a new connection through the frontend would
 * have been seen here, so the client now uses the port to talk to the backend directly, and later segments belong to that connection. */
AI bool reply_opens_another(const struct lb_pkt *pk, u64 value)
{
	return pk->tcp_flags & TCP_SYN && value_is_closing(value);
}

/* Does a pod's segment belong to another connection, while it has not accepted the client's SYN? Where the client port also talks to
 * it directly, it challenges that SYN (RFC 5961 §4.2), or continues to send on that connection. */
AI bool reply_is_of_another(const struct lb_pkt *pk, u64 snat_port, const struct ct_flow *f, u64 meta)
{
	u64 own = ct_flow_is_answered(f) | (pk->proto ^ PROTO_TCP) | (pk->tcp_flags & (TCP_SYN | TCP_RST)) | snat_port | META_IS(meta, PATH_HOST);

	OPAQUE(own);
	return UNLIKELY(!own);
}
