/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the SNAT slots: who holds which port towards which backend. Slot = (H(backend, protocol) + port) & mask,
 * so one slot is one (backend, port) pair and alone translates a reply.
 *
 * IPv4, 2 words: client address 32 | client port 16 | generation 16 ; meta. IPv6, 4 words: client port 16 | held 1 << 16 |
 * generation 16 ; client address ; meta. Meta: backend 20 | service id 16 | next hop to the client 12 | seen 12 | generation 4.
 * `seen` counts units of 8 ticks. A first packet gets a short lease (its stamp is put back); whoever shows that the flow lives
 * renews it. A slot outlives its flow's entry, which frees it when it goes.
 */
#pragma once
#include "ct_entry.h"
#include "path.h"

#define OLD_SNAT_ALIASES 8 /* in slots fewer by this factor nobody who lives loses his while they are moved */
#define SNAT_PROBES 16
#define SNAT_SLOT_GEN 0xffffULL
#define SNAT_SLOT_BACKEND(m) ((u64)(m) >> 44)
#define SNAT_SLOT_SERVICE(m) ((u16)((m) >> 28))
#define SNAT_SLOT_NEXTHOP(m) ((u64)(m) >> 16 & (NEXTHOPS - 1))
#define SNAT_SLOT_SEEN(m) ((u64)(m) >> 4 & 0xfff)
#define SNAT_SLOT_SEEN_MASK 0xfff0ULL
#define SNAT_SLOT_UNITS(ticks) ((u64)(ticks) >> 3 & 0xfff)
/* Life of a slot without a sign of its flow: the flow's own, and twice the 256 ticks between two renewals. */
#define SNAT_SLOT_LIFE ((CFG(timeout_tcp) > CFG(timeout_udp) ? CFG(timeout_tcp) : CFG(timeout_udp)) / 8 + 64 + 2)

#if LB_FAMILY == 4
#define SNAT_SLOT_META 1
#define SNAT_SLOT_BYTES SNAT4_SIZE
#define SNAT_SLOT_OWNER(owner, gen) (((owner) & ~SNAT_SLOT_GEN) | (gen))
#else
#define SNAT_SLOT_META 3
#define SNAT_SLOT_BYTES SNAT6_SIZE
#define SNAT_SLOT_OWNER(owner, gen) ((owner) >> 48 << 48 | 1 << 16 | (gen))
#endif

/* Port in network order, as everywhere. */
AI u64 *snat_slot_of(u64 backend_hash, u16 port)
{
	return (u64 *)(FAMILY_VAL(snat) + ((backend_hash + NTOHS(port)) & CFG_SNAT_MASK) * SNAT_SLOT_BYTES);
}

/* The same pair's slot in the map that is being left. */
AI u64 *snat_old_slot_of(u64 backend_hash, u16 port)
{
	return (u64 *)(FAMILY_VAL(snat_old) + ((backend_hash + NTOHS(port)) & CFG_SNAT_OLD_MASK) * SNAT_SLOT_BYTES);
}

AI u64 path_hash(const lb_path *path, u64 meta)
{
	lb_addr a;

	path_addr(path, &a);
	return addr_hash(&a, META_PORT(meta), path_proto(meta));
}

AI u64 snat_slot_stamp(u64 now, u64 state)
{
	u64 back = state == CT_NEW || state == CT_MID ? SNAT_SLOT_LIFE - CFG(timeout_new) / 8 - 2 : 0;

	return ((now >> 3) - back & 0xfff) << 4;
}

AI bool snat_slot_stale(u64 meta, u64 now)
{
	return (SNAT_SLOT_UNITS(now) - SNAT_SLOT_SEEN(meta) & 0xfff) > SNAT_SLOT_LIFE;
}

/* Does the client of the flow with this owner word (IPv6: and address) hold slot word s0? */
AI bool snat_slot_client_is(u64 *s, u64 s0, u64 owner, const lb_addr *client)
{
#if LB_FAMILY == 4
	return s0 >> 16 == owner >> 16;
#else
	return s0 >> 16 == (owner >> 48 << 32 | 1) && RD64(s + 1) == client->w[0] && RD64(s + 2) == client->w[1];
#endif
}

/* Is the slot a flow's value speaks of still that flow's? */
AI bool snat_slot_is_of(u64 *s, u64 s0, u64 value, u64 owner, const lb_addr *client)
{
	return snat_slot_client_is(s, s0, owner, client) && (s0 & 3) == V_SNAT_SLOT_GEN(value) &&
	       SNAT_SLOT_BACKEND(RD64(s + SNAT_SLOT_META)) == V_BACKEND(value);
}

AI u64 *snat_slot_of_value(u64 value)
{
	lb_path *path = path_of(V_BACKEND(value));

	return snat_slot_of(path_hash(path, PATH_META(path)), V_SNAT(value));
}

AI u64 *snat_old_slot_of_value(u64 value)
{
	lb_path *path = path_of(V_BACKEND(value));

	return snat_old_slot_of(path_hash(path, PATH_META(path)), V_SNAT(value));
}

AI void snat_slot_release(u64 *s, u64 value, u64 owner, const lb_addr *client)
{
	u64 s0 = RD64(s);

	if (snat_slot_is_of(s, s0, value, owner, client))
		CAS(s, s0, s0 & SNAT_SLOT_GEN);
}

/* Frees the slot of a flow that ends. Its generation stays, so that the next holder gets another one. */
AI void snat_release(u64 value, u64 owner, const lb_addr *client)
{
	if (!V_SNAT(value))
		return;
	snat_slot_release(snat_slot_of_value(value), value, owner, client);
	if (MIGRATING_SNAT)
		snat_slot_release(snat_old_slot_of_value(value), value, owner, client);
}

/* Does the flow (owner word, client, service) still hold the slot its value speaks of? */
AI bool snat_slot_held(u64 *s, u64 meta, u64 value, u64 owner, const lb_addr *client, u64 service)
{
	return snat_slot_client_is(s, RD64(s), owner, client) && SNAT_SLOT_BACKEND(meta) == V_BACKEND(value) && SNAT_SLOT_SERVICE(meta) == service;
}

/* Prolongs the lease. */
AI void snat_renew(u64 value, u64 owner, const lb_addr *client, u64 service, u64 now)
{
	u64 *s = snat_slot_of_value(value), meta = RD64(s + SNAT_SLOT_META);

	if (snat_slot_held(s, meta, value, owner, client, service))
		CAS(s + SNAT_SLOT_META, meta, (meta & ~SNAT_SLOT_SEEN_MASK) | snat_slot_stamp(now, V_STATE(value)));
}

AI u64 snat_first(u64 hash, u64 range)
{
	return ((hash >> 24 & 0xffffffff) * range) >> 32;
}

/* The hash that leads to other ports. */
AI u64 snat_other(u64 hash)
{
	return hash * 0x9FB21C651E98DF25ULL;
}

/* Returns the n-th port (host order) to ask for, 0 if the range is too small for it. Two runs of 8 neighbours, so that at most
 * four cache lines are read. */
AI u64 snat_probe(u64 hash, u64 n)
{
	u64 first = CFG(snat_port_min), range = CFG(snat_port_max) - first + 1;
	u64 at = snat_first(hash, range) + n + (n >> 3) * (range >> 1);

	if (at >= range)
		at -= range;
	return at < range ? first + at : 0;
}

/* Starts the cache miss of the first slot snat_take() will ask for. */
AI void snat_prefetch(u64 hash, u64 backend)
{
	u64 first = CFG(snat_port_min), host = first + snat_first(hash, CFG(snat_port_max) - first + 1);
	lb_path *path = path_of(backend);

	RD64(snat_slot_of(path_hash(path, PATH_META(path)), HTONS(host)));
}

AI void snat_slot_write(u64 *s, const lb_addr *client, u64 meta)
{
#if LB_FAMILY == 6
	WR64(s + 1, client->w[0]);
	WR64(s + 2, client->w[1]);
	MB();
#endif
	WR64(s + SNAT_SLOT_META, meta);
}

/* 1 if a slot of the old map is held by a live flow other than this one, else 0. Without a branch: the verifier counts ways. */
AI u64 snat_slot_of_another(u64 *s, u64 owner, const lb_addr *client, u64 backend, u64 now)
{
	u64 s0 = RD64(s), meta = RD64(s + SNAT_SLOT_META), held = -(s0 >> 16);
	u64 fresh = ((SNAT_SLOT_UNITS(now) - SNAT_SLOT_SEEN(meta)) & 0xfff) - SNAT_SLOT_LIFE - 1, other = SNAT_SLOT_BACKEND(meta) ^ backend;

#if LB_FAMILY == 4
	other |= (s0 >> 16) ^ (owner >> 16);
#else
	other |= ((s0 >> 16) ^ (owner >> 48 << 32 | 1)) | (RD64(s + 1) ^ client->w[0]) | (RD64(s + 2) ^ client->w[1]);
#endif
	other |= -other;
	OPAQUE(held);
	OPAQUE(fresh);
	OPAQUE(other);
	return (held & fresh & other) >> 63;
}

/* Will a flow that lives in the slots that are being left need the new slot `index`? Nobody else may take it then. Fewer slots: all
 * old ones that fall together in it are asked, OLD_SNAT_ALIASES at most. */
AI bool snat_awaited(u64 index, u64 owner, const lb_addr *client, u64 backend, u64 now)
{
	u64 awaited = 0;

	NO_UNROLL
	for (u64 n = 0; n < OLD_SNAT_ALIASES; n++) {
		u64 at = (index + n * (CFG_SNAT_MASK + 1)) & CFG_SNAT_OLD_MASK;

		awaited |= snat_slot_of_another((u64 *)(FAMILY_VAL(snat_old) + at * SNAT_SLOT_BYTES), owner, client, backend, now);
	}
	return awaited;
}

/* Takes a pair in the slots that are being left as well (word s0, then meta): programs that know only those may still run for a
 * moment. Returns false if somebody else is quicker. */
AI bool snat_take_old(u64 *s, const lb_addr *client, u64 taken, u64 meta)
{
	u64 s0 = RD64(s);

	if (s0 >> 16) /* stale, or the flow's own: snat_awaited() has looked */
		return true;
	if (CAS(s, s0, taken) != s0)
		return false;
	snat_slot_write(s, client, meta);
	return true;
}

/* Takes a port for a flow of `client` (owner word `owner`, hash `hash`) towards a backend. Returns the port and the slot's generation as they stand in a value word; 0: none is free. */
AI u64 snat_take(u64 hash, u64 owner, const lb_addr *client, u64 backend, u64 service, u64 now)
{
	lb_path *path = path_of(backend);
	u64 bh = path_hash(path, PATH_META(path)), stamp = snat_slot_stamp(now, CT_NEW);

	NO_UNROLL
	for (u64 i = 0; i < SNAT_PROBES; i++) {
		u64 host = snat_probe(hash, i), s0, gen, meta, *s;
		u16 port;

		if (!host)
			continue;
		port = HTONS(host);
		s = snat_slot_of(bh, port);
		s0 = RD64(s);
		if (s0 >> 16) {
			bool mine;

			meta = RD64(s + SNAT_SLOT_META);
			mine = snat_slot_client_is(s, s0, owner, client) && SNAT_SLOT_BACKEND(meta) == backend &&
				    SNAT_SLOT_SERVICE(meta) == service;

			if (!mine && !snat_slot_stale(meta, now))
				continue;
		}
		if (MIGRATING_SNAT && snat_awaited((bh + host) & CFG_SNAT_MASK, owner, client, backend, now))
			continue;
		gen = (s0 + 1) & SNAT_SLOT_GEN;
		if (CAS(s, s0, SNAT_SLOT_OWNER(owner, gen)) != s0)
			continue;
		meta = backend << 44 | (u64)service << 28 | stamp | (gen & 15);
		if (MIGRATING_SNAT && !snat_take_old(snat_old_slot_of(bh, port), client, SNAT_SLOT_OWNER(owner, gen), meta)) {
			CAS(s, SNAT_SLOT_OWNER(owner, gen), gen);
			continue;
		}
		snat_slot_write(s, client, meta);
		return (u64)port << 20 | (gen & 3) << 14;
	}
	return 0;
}

/* Who a SNAT port's reply is for. */
struct snat_view {
	u64 *slot;
	u64 meta;
	lb_addr client;
	u16 client_port;
};

AI bool snat_find_at(u64 *s, const struct lb_pkt *pk, struct snat_view *view)
{
	u64 s0 = RD64(s), meta, path_meta;
	lb_path *path;

	if (!(s0 >> 16))
		return false;
	MB();
	meta = RD64(s + SNAT_SLOT_META);
	view->slot = s;
	view->meta = meta;
#if LB_FAMILY == 4
	view->client.w[0] = s0 >> 32;
	view->client_port = s0 >> 16;
#else
	view->client.w[0] = RD64(s + 1);
	view->client.w[1] = RD64(s + 2);
	view->client_port = s0 >> 48;
	MB();
	if (RD64(s) != s0)
		return false;
#endif
	path = path_of(SNAT_SLOT_BACKEND(meta));
	path_meta = PATH_META(path);
	return !((s0 ^ meta) & 15) && path_between(path, &pk->saddr, &pk->daddr) && META_PORT(path_meta) == pk->sport &&
	       path_carries(path_meta, pk->proto);
}

/* Finds the holder of our port `pk->dport` towards the backend that sent `pk`. Returns false if nobody holds it. */
AI bool snat_find(const struct lb_pkt *pk, struct snat_view *view)
{
	return snat_find_at(snat_slot_of(addr_hash(&pk->saddr, pk->sport, pk->proto), pk->dport), pk, view);
}

/* The same off the fast path: a slot that is being moved is in the new place before it leaves the old one. */
AI bool snat_find_slow(const struct lb_pkt *pk, struct snat_view *view)
{
	if (snat_find(pk, view))
		return true;
	if (!MIGRATING_SNAT)
		return false;
	return snat_find_at(snat_old_slot_of(addr_hash(&pk->saddr, pk->sport, pk->proto), pk->dport), pk, view) || snat_find(pk, view);
}
