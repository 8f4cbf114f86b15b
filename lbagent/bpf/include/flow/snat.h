/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains SNAT ports: taking one for a flow, its lease, releasing it. A first packet gets a short lease (its stamp is set into
 * the past), only an established flow gets a full one. A slot may outlive its flow's entry, which frees it when it is removed. The file
 * also contains the look-up of a port's holder by a reply, and the changes of a reply to the slot. snat_slot.h has the layout.
 */
#pragma once
#include "snat_slot.h"

#define OLD_SNAT_ALIASES 8 /* up to this factor fewer slots: no live flow loses its slot while they are moved */
#define SNAT_PROBES 16

/* Frees the slot of a flow that ends. */
AI void snat_release(u64 value, u64 owner, const lb_addr *client, u16 frontend_port)
{
	if (!value_is_snat(value))
		return;
	snat_slot_release(snat_slot_of_value(value, frontend_port), value, owner, client);
	if (MIGRATING_SNAT)
		snat_slot_release(snat_old_slot_of_value(value, frontend_port), value, owner, client);
}

/* Restarts the lease, with the length that the flow's state allows. */
AI void snat_renew(u64 value, u64 owner, const lb_addr *client, u16 frontend_port, u64 service, u64 now)
{
	u64 *s = snat_slot_of_value(value, frontend_port), meta = RD64(s + SNAT_SLOT_META);

	if (!snat_slot_differs(s, meta, value, owner, client, service))
		CAS(s + SNAT_SLOT_META, meta, (meta & ~SNAT_META_STAMP_MASK) | snat_slot_stamp(now, value, OWNER_L4(owner)));
}

/* Sets bit 63 if the flow (value, owner word, client, service) holds slot `index` neither here nor in the slots that are being left. Without a
 * branch: the verifier counts paths. */
AI u64 snat_not_held(u64 index, u64 value, u64 owner, const lb_addr *client, u64 service)
{
	u64 *s = snat_slot_at(index), differs = snat_slot_differs(s, RD64(s + SNAT_SLOT_META), value, owner, client, service), old;

	differs |= -differs;
	OPAQUE(differs);
	if (MIGRATING_SNAT) {
		s = snat_old_slot_at(index);
		old = snat_slot_differs(s, RD64(s + SNAT_SLOT_META), value, owner, client, service);
		old |= -old;
		OPAQUE(old);
		differs &= old;
	}
	return differs;
}

/* Has the flow with this value lost its port? */
AI bool snat_is_lost(u64 value, u64 owner, const lb_addr *client, u16 frontend_port, u64 service)
{
	return snat_not_held(snat_index_of_value(value, frontend_port), value, owner, client, service) >> 63 & value_is_snat(value);
}

/* Returns the value of a flow with the generation that its slot has now. */
AI u64 snat_value_now(u64 value, u16 frontend_port)
{
	return value_with_slot_gen(value, RD64(snat_slot_of_value(value, frontend_port)));
}

AI u64 snat_first(u64 hash, u64 range)
{
	return ((hash >> 24 & 0xffffffff) * range) >> 32;
}

/* A hash that selects other ports. */
AI u64 snat_other(u64 hash)
{
	return hash * 0x9FB21C651E98DF25ULL;
}

/* Returns the n-th candidate port (host order), 0 if the range is too small for it. Two runs of 8 neighbours, so that at most
 * four cache lines are read. */
AI u64 snat_probe(u64 hash, u64 n)
{
	u64 first = CFG(snat_port_min), range = CFG(snat_port_max) - first + 1;
	u64 over = snat_first(hash, range) + n + (n >> 3) * (range >> 1) - range;

	over += range * SIGN(over);
	return (first + over) * SIGN(over - range);
}

/* Starts the cache miss of the first slot snat_take() will read. */
AI void snat_prefetch(u64 hash, u64 backend, u16 frontend_port)
{
	u64 first = CFG(snat_port_min), host = first + snat_first(hash, CFG(snat_port_max) - first + 1);

	RD64(snat_slot_of(backend_hash(backend, frontend_port), HTONS(host)));
}

/* 1 if a slot of the old map is held by a live flow other than this one, else 0. Without a branch: the verifier counts paths. */
AI u64 snat_slot_of_another(u64 *s, u64 owner, const lb_addr *client, u64 backend, u64 now)
{
	u64 s0 = RD64(s), meta = RD64(s + SNAT_SLOT_META), held = -SNAT_SLOT_IS_HELD(s0);
	u64 fresh = snat_slot_age(meta, now) - SNAT_LIFE - 1, other = SNAT_SLOT_BACKEND(meta) ^ backend;

#if LB_FAMILY == 4
	other |= SNAT_SLOT_IS_HELD(s0) ^ SNAT_SLOT_HELD_BY(owner);
#else
	other |= (SNAT_SLOT_IS_HELD(s0) ^ SNAT_SLOT_HELD_BY(owner)) | (RD64(s + SNAT_SLOT_CLIENT) ^ client->w[0]) |
		 (RD64(s + SNAT_SLOT_CLIENT_END) ^ client->w[1]);
#endif
	other |= -other;
	OPAQUE(held);
	OPAQUE(fresh);
	OPAQUE(other);
	return (held & fresh & other) >> 63;
}

/* Will a live flow in the old slots need the new slot `index`? Then no other flow may take it. With fewer slots, all old ones that
 * share it are checked, OLD_SNAT_ALIASES at most. */
AI u64 snat_awaited(u64 index, u64 owner, const lb_addr *client, u64 backend, u64 now)
{
	u64 awaited = 0;

	NO_UNROLL
	for (u64 n = 0; n < OLD_SNAT_ALIASES; n++) {
		u64 *s = snat_old_slot_at(index + n * (CFG_SNAT_MASK + 1));

		awaited |= snat_slot_of_another(s, owner, client, backend, now);
	}
	return awaited;
}

#define NO_BACKEND (1ULL << V_BACKEND_BITS) /* beyond every id */

/* Returns 1 if any live flow in the old slots will need the new slot `index`, else 0. */
AI u64 snat_awaited_by_any(u64 index, u64 now)
{
	lb_addr client = {};

	return snat_awaited(index, 0, &client, NO_BACKEND, now);
}

/* Takes a pair in the old slots, too (word s0, then meta): programs that have only those may still run for a moment. Returns false if
 * another CPU takes it first. */
AI bool snat_take_old(u64 *s, const lb_addr *client, u64 taken, u64 meta)
{
	u64 s0 = RD64(s);

	if (SNAT_SLOT_IS_HELD(s0)) /* stale, or the flow's own: snat_awaited() has checked */
		return true;
	if (CAS(s, s0, taken) != s0)
		return false;
	snat_slot_write(s, client, meta);
	return true;
}

/* Returns the port (host order) that the flow `key` (with this hash) already holds, 0 if none: its entry was evicted, or never made.
 * An earlier port in the flow's order may be free by now. Without a branch: the verifier counts paths. */
AI u64 snat_held(u64 hash, const struct ct_key *key, u64 backend, u64 service)
{
	u64 bh = backend_hash(backend, KEY_VIP_PORT(key)), value = backend << V_BACKEND_SHIFT, held = 0;

	NO_UNROLL
	for (u64 i = 0; i < SNAT_PROBES; i++) {
		u64 host = snat_probe(hash, i), not_held = snat_not_held(bh + host, value, KEY_OWNER(key), KEY_CLIENT(key), service) | (host - 1);

		OPAQUE(not_held);
		held = host + (held - host) * SIGN(not_held);
	}
	return held;
}

/* Takes a port for the flow `key` (with this hash) towards a backend: `only` (host order), if it is not 0, else one of those the hash
 * selects. Returns it in the form of value_with_snat(); 0: none is free. */
AI u64 snat_take(u64 hash, u64 only, const struct ct_key *key, u64 backend, u64 service, u64 now)
{
	u64 bh = backend_hash(backend, KEY_VIP_PORT(key)), value = backend << V_BACKEND_SHIFT, owner = KEY_OWNER(key);
	u64 stamp = snat_slot_stamp(now, CT_NEW << V_STATE_SHIFT, OWNER_L4(owner));
	const lb_addr *client = KEY_CLIENT(key);

	NO_UNROLL
	for (u64 i = 0; i < SNAT_PROBES; i++) {
		u64 host = only ? only : snat_probe(hash, i), s0, gen, meta, *s;
		u16 port;

		if (only && i)
			break;
		if (!host)
			continue;
		FORGET(host, hash);
		port = HTONS(host);
		s = snat_slot_of(bh, port);
		s0 = RD64(s);
		if (SNAT_SLOT_IS_HELD(s0) && !(LB_IS_DRY && only)) { /* a dry program has freed `only` in name alone */
			meta = RD64(s + SNAT_SLOT_META);
			if (snat_slot_differs(s, meta, value, owner, client, service) && !snat_slot_is_stale(meta, now))
				continue;
		}
		FORGET(s0, hash);
		if (MIGRATING_SNAT && snat_awaited((bh + host) & CFG_SNAT_MASK, owner, client, backend, now))
			continue;
		gen = (s0 + 1) & SNAT_SLOT_GEN;
		if (CAS(s, s0, SNAT_SLOT_OWNER(owner, gen)) != s0)
			continue;
		meta = snat_slot_meta(backend, service, stamp, gen);
		if (MIGRATING_SNAT && !snat_take_old(snat_old_slot_of(bh, port), client, SNAT_SLOT_OWNER(owner, gen), meta)) {
			CAS(s, SNAT_SLOT_OWNER(owner, gen), gen);
			continue;
		}
		snat_slot_write(s, client, meta);
		return value_snat_part(port, gen);
	}
	return 0;
}

/* Frees a slot whose lease is over: its flow spilled, or was never stored. */
AI void snat_expire(u64 index, u64 now)
{
	u64 *s = snat_slot_at(index), s0 = RD64(s);

	if (SNAT_SLOT_IS_HELD(s0) && snat_slot_is_stale(RD64(s + SNAT_SLOT_META), now))
		snat_slot_free(s, s0);
}

/* --- the holder of a port, found by a reply to it --- */

/* Does this packet come from the backend to which the holder of the slot has the port? One behind a range of ports (off the fast path
 * alone: `slow`, a constant) sends from the port of the slot, which is the packet's. */
AI bool snat_find_at(u64 *s, const struct lb_pkt *pk, struct snat_view *view, const bool slow)
{
	u64 path_meta;
	lb_path *path;
	u16 port;

	if (!snat_slot_read(s, view))
		return false;
	path = path_of(snat_view_backend(view));
	path_meta = PATH_META_STORED(path);
	port = slow ? meta_port(path_meta, pk->sport) : META_PORT(path_meta);
	return path_between(path, &pk->saddr, &pk->daddr) && port == pk->sport && path_carries(path_meta, pk->proto);
}

/* Finds the holder of our port `pk->dport` towards the backend that sent `pk`. Returns false if it is free, or if `pk` is for an extra
 * SNAT address. */
AI bool snat_find(const struct lb_pkt *pk, struct snat_view *view, const bool slow)
{
	return snat_find_at(snat_slot_of(addr_hash(&pk->saddr, pk->sport, pk->proto), pk->dport), pk, view, slow);
}

/* The same where `pk` is for an extra SNAT address. Checked second: one may be the first address of other backends. */
AI bool snat_find_extra(const struct lb_pkt *pk, struct snat_view *view, const bool slow)
{
	u64 salt = extra_snat_salt(&pk->daddr);

	return salt && snat_find_at(snat_slot_of(addr_hash(&pk->saddr, pk->sport, pk->proto) + salt, pk->dport), pk, view, slow);
}

AI bool snat_find_any(const struct lb_pkt *pk, struct snat_view *view)
{
	return snat_find(pk, view, true) || (EXTRA_SNAT_SOURCES && snat_find_extra(pk, view, true));
}

/* In the old slots. */
AI bool snat_find_old(const struct lb_pkt *pk, struct snat_view *view)
{
	u64 hash = addr_hash(&pk->saddr, pk->sport, pk->proto), salt;

	if (snat_find_at(snat_old_slot_of(hash, pk->dport), pk, view, true))
		return true;
	if (!EXTRA_SNAT_SOURCES)
		return false;
	salt = extra_snat_salt(&pk->daddr);
	return salt && snat_find_at(snat_old_slot_of(hash + salt, pk->dport), pk, view, true);
}

/* Off the fast path: a slot that is being moved is in the new place before it leaves the old one. */
AI bool snat_find_slow(const struct lb_pkt *pk, struct snat_view *view)
{
	if (snat_find_any(pk, view))
		return true;
	if (!MIGRATING_SNAT)
		return false;
	return snat_find_old(pk, view) || snat_find_any(pk, view);
}

/* Records a reply to the port of `view`: the lease, if the flow is established (`value`: the flow's, 0: not known), and the next hop towards
 * the client where one was learned (else 0). */
AI void snat_view_refresh(const struct snat_view *view, u64 value, u64 l4, u64 now, u64 learned)
{
	u64 meta = RD64(view->slot + SNAT_SLOT_META), next = meta; /* the flow's refresh may have renewed it */

	if ((meta ^ view->meta) & ~(SNAT_META_STAMP_MASK | SNAT_META_CLIENT_HOP_MASK))
		return;
	if (V_STATE(value) == CT_ESTABLISHED)
		next = (meta & ~SNAT_META_STAMP_MASK) | snat_slot_stamp(now, value, l4);
	if (learned)
		next = (next & ~SNAT_META_CLIENT_HOP_MASK) | learned << SNAT_META_CLIENT_HOP_SHIFT;
	if (next != meta)
		CAS(view->slot + SNAT_SLOT_META, meta, next);
}

/* Frees the slot of `view`, if it still is as it was read. Returns whether it was. */
AI bool snat_view_free(const struct snat_view *view)
{
	return snat_slot_free(view->slot, view->word);
}
