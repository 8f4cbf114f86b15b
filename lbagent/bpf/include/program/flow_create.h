/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program at CALL_FLOW_CREATE: the flow of a packet whose backend is chosen gets its SNAT port and its
 * entry, then the packet is sent. If another CPU was faster, there is one retry, then the packet is dropped.
 */
#pragma once
#include "slow_path.h"
#include "ct_insert.h"

#define FLOW_CREATE_TRIES 2
#define CT_FOUND 5 /* another CPU created the same flow */
#define RECLAIM_IN_VAIN 0xff /* in reclaim_flows: the reclaimed port could not be taken */

/* Loads the destination that the holder of a SNAT port used. It may be the backend itself. `port`: that of the backend, which is the
 * frontend's where a range of ports keeps it. Returns false if it is removed. */
AI bool view_frontend(const struct snat_view *view, u16 port, lb_addr *vip, u16 *vip_port)
{
	lb_path *path = path_of(snat_view_backend(view));

	if (snat_view_service(view) != SERVICE_NONE)
		return service_frontend_slow(snat_view_service(view), port, vip, vip_port);
	path_addr(path, vip);
	*vip_port = meta_port(PATH_META(path), port);
	return true;
}

/* The other CPU's flow stays: its SNAT port is kept, ours is released. If both took the same slot, it has the generation of the
 * later flow. */
AI void flow_create_yield(struct ct_flow *f, const struct ct_key *key, u64 value)
{
	if (!value_is_snat(value))
		return;
	if (value_shares_slot(f->value, value))
		ct_flow_set(f, snat_value_now(f->value, KEY_VIP_PORT(key)));
	else
		ct_release_snat(value, key);
}

/* A spilled flow has another backend, which sends its replies. */
AI void flow_create_move_replies(const struct ct_flow *f, const struct ct_key *key, const struct ct_key *reply, const struct lb_scratch *s,
				 u64 value, u64 now)
{
	if (LIKELY(!f->spilled))
		return;
	ct_unspill_reply(key, s->old_value);
	ct_spill_reply(reply, value, s->service, now);
}

/* No SNAT port is available. A packet for no frontend passes unchanged. */
AI int flow_create_without_port(lb_ctx *ctx, const struct lb_scratch *s)
{
	if (s->service == SERVICE_NONE && s->choice == CHOICE_NEW)
		return verdict(ctx, REASON_PASS_NOT_SERVICE, LB_PASS);
	return verdict(ctx, REASON_DROP_SNAT_EXHAUSTED, LB_DROP);
}

/* With rules a flow has its backend by chance: it needs an entry, if need be in the spill map. */
AI u64 flow_create(struct lb_scratch *s, const struct ct_key *key, const struct ct_key *reply, u64 value, u64 now, struct ct_flow *f)
{
	u64 rc = CT_RETRY;

	f->bucket = ct_bucket(s->hash);
	f->version = s->version;
	s->is_opening = is_syn(&s->pk) && s->service != SERVICE_NONE;
	NO_UNROLL
	for (u64 n = 0; n < FLOW_CREATE_TRIES; n++) {
		if ((n || s->choice == CHOICE_RESELECT) && ct_find_slow(s->hash, key, now, f)) {
			if (s->choice == CHOICE_NEW || f->value != s->old_value)
				return CT_FOUND;
			if (ct_flow_replace(f, s->old_value, value, s->service)) {
				flow_create_move_replies(f, key, reply, s, value, now);
				return CT_OK;
			}
			continue;
		}
		rc = ct_insert(s->hash, key, reply, value, s->service, s->is_opening && !s->has_rules, now, f);
		if (rc == CT_OK && UNLIKELY(s->has_rules))
			flow_opened(s->service, value);
		if (rc != CT_RETRY)
			break;
	}
	return rc;
}

AI u32 flow_create_reason(const struct lb_scratch *s, u64 rc)
{
	if (rc == CT_SPILLED)
		return REASON_FWD_SPILL;
	if (rc == CT_NO_STATE)
		return REASON_FWD_NO_STATE;
	return s->choice == CHOICE_RESELECT ? REASON_FWD_RESELECTED : REASON_FWD_NEW;
}

/* A RST without a flow creates none: it is sent to the backend that its flow would have, from a port that is released at once. */
AI bool flow_create_is_stray(const struct lb_pkt *pk)
{
	return pk->tcp_flags & TCP_RST;
}

AI int flow_create_main(lb_ctx *ctx)
{
	struct lb_scratch *s = scratch();
	u64 now = now_ticks(), value, meta, rc = CT_OK;
	struct ct_key key, reply;
	struct ct_flow f = {};
	lb_path *path;
	lb_addr backend;
	int limit;

	if (!s)
		return LB_DROP;
	path = path_of(s->backend);
	meta = PATH_META(path);
	TRACE(PATH, s->backend, meta);
	limit = slow_path_limits(ctx, s, meta, forward_is_local(s->forward));
	if (limit == CONTINUE)
		limit = slow_path_resolve_egress(ctx, s, path, meta, s->forward);
	if (limit != CONTINUE)
		return limit;
	ct_key_make(&key, &s->pk.saddr, s->pk.sport, &s->pk.daddr, s->pk.dport, s->pk.proto);
	path_addr(path, &backend);
	ct_key_reply(&reply, &key, &backend, meta_port(meta, s->pk.dport));
	value = value_make(s->backend, s->backend_gen, s->pk.proto == PROTO_TCP && !is_syn(&s->pk) ? CT_MID : CT_NEW, s->forward);
	FORGET(value, s->hash);
	RACE_POINT(FLOW_CREATE);
	if (s->forward == FORWARD_SNAT) {
		u64 port;

		s->snat_held = s->snat_port;
		if (!s->snat_port && !is_syn(&s->pk)) /* in the middle of a connection: its backend identifies it by its port */
			s->snat_held = snat_held(s->hash, &key, s->backend, s->service);
		port = snat_take(s->hash, s->snat_held, &key, s->backend, s->service, now);

		TRACE(SNAT_PORT, port ? NTOHS(value_snat_port(value_with_snat(value, port))) : 0, s->backend);
		if (!port) {
			s->reclaim_flows = s->snat_port ? RECLAIM_IN_VAIN : 0;
			if (EXTRA_SNAT_SOURCES || !s->snat_port)
				lb_call(ctx, FAMILY_CALL(CALL_SNAT_RECLAIM));
			return flow_create_without_port(ctx, s);
		}
		value = value_with_snat(value, port);
		RACE_POINT(SNAT_TAKEN);
	}
	FORGET(value, s->hash); /* with a port, without one, TCP's middle: the code after this is the same for all */
	f.value = value;
	if (UNLIKELY(flow_create_is_stray(&s->pk)))
		ct_release_snat(value, &key);
	else
		rc = flow_create(s, &key, &reply, value, now, &f);
	if (rc == CT_RETRY || rc == CT_FULL) {
		if (rc == CT_FULL) /* else it expires soon: the first lease is short */
			ct_release_snat(value, &key);
		return verdict(ctx, REASON_DROP_RACE, LB_DROP);
	}
	if (rc == CT_FOUND) { /* its backend may differ: start again */
		flow_create_yield(&f, &key, value);
		lb_call(ctx, FAMILY_CALL(CALL_SLOW_PATH));
		return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
	}
	/* the same port number is a new lease: the old one was lost, and two bits of a generation do not always tell them apart */
	if (rc == CT_OK && s->choice == CHOICE_RESELECT && !value_shares_slot(s->old_value, value))
		ct_release_snat(s->old_value, &key);
	if (s->choice == CHOICE_NEW)
		count_new_flow(s->service);
	if (rc == CT_OK && s->is_opening && s->pk.proto == PROTO_TCP)
		handshake_begin(s->hash, &s->pk.saddr, s->service, s->backend);
	return slow_path_send(ctx, s, f.value, s->service, flow_create_reason(s, rc), true);
}
