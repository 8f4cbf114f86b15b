/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the layout of the SNAT slots and their leases: who holds which port towards which backend. Slot = (H(backend,
 * protocol) + port) & mask, so one slot is one (backend, port) pair and alone translates a reply. H takes the IANA number of the
 * protocol. With an extra SNAT address (path.h) `backend` is the id of its record, and H is that of the backend plus the salt of the
 * address. Only the headers of the flow table (ct_*.h, snat*.h) use the words, SNAT_SLOT_* and SNAT_META_* of maps/flow_layout.py;
 * others use functions.
 */
#pragma once
#include "ct_entry.h"

#define SNAT_SLOT_GEN SNAT_SLOT_GENERATION_MASK
#define SNAT_SLOT_BACKEND(m) FIELD(SNAT_META_BACKEND, m)
#define SNAT_SLOT_SERVICE(m) ((u16)((m) >> SNAT_META_SERVICE_SHIFT))
#define SNAT_SLOT_STAMP(m) FIELD(SNAT_META_STAMP, m)
#define SNAT_SLOT_UNITS(ticks) ((u64)(ticks) / SNAT_STAMP_TICKS & ((1ULL << SNAT_META_STAMP_BITS) - 1))
#define SNAT_SLOT_IS_HELD(s0) ((s0) >> OWNER_HELD_SHIFT)
#define SNAT_SLOT_IS_TORN(s0, meta) (((s0) ^ (meta)) & SNAT_META_GENERATION_MASK) /* the words are of two holders */

/* First word of the slot of the flow with this owner word: the part of that word that identifies the holder. */
#if LB_FAMILY == 4
#define SNAT_SLOT_BYTES SNAT4_SIZE
#define SNAT_SLOT_OWNER(owner, gen) (((owner) & ~SNAT_SLOT_GEN) | (gen))
#define SNAT_SLOT_HELD_BY(owner) ((owner) >> OWNER_CLIENT_PORT_SHIFT)
_Static_assert(OWNER_CLIENT_PORT_SHIFT == SNAT_SLOT_CLIENT_PORT_SHIFT && OWNER_CLIENT_SHIFT == SNAT_SLOT_CLIENT_SHIFT &&
	       OWNER_HELD_SHIFT == SNAT_SLOT_CLIENT_PORT_SHIFT, "client as in the owner word, above the generation");
#else
#define SNAT_SLOT_BYTES SNAT6_SIZE
#define SNAT_SLOT_OWNER(owner, gen) ((owner) >> OWNER_CLIENT_PORT_SHIFT << SNAT_SLOT_CLIENT_PORT_SHIFT | 1 << SNAT_SLOT_HELD_SHIFT | (gen))
#define SNAT_SLOT_HELD_BY(owner) ((owner) >> OWNER_CLIENT_PORT_SHIFT << (SNAT_SLOT_CLIENT_PORT_SHIFT - SNAT_SLOT_HELD_SHIFT) | 1)
_Static_assert(OWNER_HELD_SHIFT == SNAT_SLOT_HELD_SHIFT && SNAT_SLOT_HELD_BITS == 1, "held or free");
#endif

AI u64 *snat_slot_at(u64 index)
{
	return (u64 *)(FAMILY_VAL(snat) + (index & CFG_SNAT_MASK) * SNAT_SLOT_BYTES);
}

/* A slot of the map that is being left. */
AI u64 *snat_old_slot_at(u64 index)
{
	return (u64 *)(FAMILY_VAL(snat_old) + (index & CFG_SNAT_OLD_MASK) * SNAT_SLOT_BYTES);
}

/* The slot of a pair; `bh`: backend_hash() or path_hash(). Port in network order, as everywhere. */
AI u64 *snat_slot_of(u64 bh, u16 port)
{
	return snat_slot_at(bh + NTOHS(port));
}

AI u64 *snat_old_slot_of(u64 bh, u16 port)
{
	return snat_old_slot_at(bh + NTOHS(port));
}

AI u64 path_hash(const lb_path *path, u64 meta, u16 frontend_port)
{
	lb_addr a;

	path_addr(path, &a);
	return addr_hash(&a, meta_port(meta, frontend_port), l4_number(path_l4(meta)));
}

#define EXTRA_SNAT_SALT 0x9E3779B97F4A7C15ULL /* its multiples lie apart in tables of any size */

/* `frontend_port`: of the flow, which a backend behind a range of ports gets its packets at. */
AI u64 backend_hash(u64 backend, u16 frontend_port)
{
	lb_path *path = path_of(backend);
	u64 meta = PATH_META(path), hash = path_hash(path, meta, frontend_port);

	if (EXTRA_SNAT_SOURCES)
		hash += META_EXTRA_SNAT(meta) * EXTRA_SNAT_SALT;
	return hash;
}

#if LB_FAMILY == 4
#define IS_EXTRA_SNAT_SOURCE(a, n) ((a)->w[0] == CFG(extra_snat4_##n))
#else
#define IS_EXTRA_SNAT_SOURCE(a, n) ((a)->w[0] == CFG(extra_snat6_##n##_first) && (a)->w[1] == CFG(extra_snat6_##n##_second))
#endif

/* Returns what is added to the hash of a backend with this source address of the node; 0 if it is none of the extra SNAT addresses. */
AI u64 extra_snat_salt(const lb_addr *a)
{
	if (IS_EXTRA_SNAT_SOURCE(a, 1))
		return EXTRA_SNAT_SALT;
	if (IS_EXTRA_SNAT_SOURCE(a, 2))
		return 2 * EXTRA_SNAT_SALT;
	if (IS_EXTRA_SNAT_SOURCE(a, 3))
		return 3 * EXTRA_SNAT_SALT;
	return IS_EXTRA_SNAT_SOURCE(a, 4) ? 4 * EXTRA_SNAT_SALT : 0;
}

_Static_assert(MAX_EXTRA_SNAT == 4, "extra_snat_salt() checks each of them");

/* Returns the number of the slot that a flow's value refers to, modulo the number of slots. */
AI u64 snat_index_of_value(u64 value, u16 frontend_port)
{
	return backend_hash(V_BACKEND(value), frontend_port) + NTOHS(value_snat_port(value));
}

AI u64 *snat_slot_of_value(u64 value, u16 frontend_port)
{
	return snat_slot_at(snat_index_of_value(value, frontend_port));
}

AI u64 *snat_old_slot_of_value(u64 value, u16 frontend_port)
{
	return snat_old_slot_at(snat_index_of_value(value, frontend_port));
}

AI u64 snat_slot_meta(u64 backend, u64 service, u64 stamp, u64 gen)
{
	return backend << SNAT_META_BACKEND_SHIFT | service << SNAT_META_SERVICE_SHIFT | stamp | (gen & SNAT_META_GENERATION_MASK);
}

/* Returns 0 for a free slot. */
AI u64 snat_slot_holder(u64 *s)
{
	return SNAT_SLOT_IS_HELD(RD64(s));
}

/* Does the client of the flow with this owner word (IPv6: and address) hold slot word s0? */
AI bool snat_slot_client_is(u64 *s, u64 s0, u64 owner, const lb_addr *client)
{
#if LB_FAMILY == 4
	return SNAT_SLOT_IS_HELD(s0) == SNAT_SLOT_HELD_BY(owner);
#else
	return SNAT_SLOT_IS_HELD(s0) == SNAT_SLOT_HELD_BY(owner) && RD64(s + SNAT_SLOT_CLIENT) == client->w[0] &&
	       RD64(s + SNAT_SLOT_CLIENT_END) == client->w[1];
#endif
}

/* Does the flow still hold the slot that its value refers to? */
AI bool snat_slot_is_of(u64 *s, u64 s0, u64 value, u64 owner, const lb_addr *client)
{
	return snat_slot_client_is(s, s0, owner, client) && (s0 & ((1 << V_SNAT_GENERATION_BITS) - 1)) == V_SNAT_SLOT_GEN(value) &&
	       SNAT_SLOT_BACKEND(RD64(s + SNAT_SLOT_META)) == V_BACKEND(value);
}

/* Returns 0 if the flow (owner word, client, service) still holds the slot, whatever its generation, else some bits. Without a branch:
 * the verifier counts paths. */
AI u64 snat_slot_differs(u64 *s, u64 meta, u64 value, u64 owner, const lb_addr *client, u64 service)
{
	u64 differs = (SNAT_SLOT_BACKEND(meta) ^ V_BACKEND(value)) | (SNAT_SLOT_SERVICE(meta) ^ service);

#if LB_FAMILY == 4
	return differs | (RD64(s) ^ owner) >> OWNER_HELD_SHIFT;
#else
	return differs | (SNAT_SLOT_IS_HELD(RD64(s)) ^ SNAT_SLOT_HELD_BY(owner)) | (RD64(s + SNAT_SLOT_CLIENT) ^ client->w[0]) |
	       (RD64(s + SNAT_SLOT_CLIENT_END) ^ client->w[1]);
#endif
}

/* Writes the words after the first one, which the caller has taken. */
AI void snat_slot_write(u64 *s, const lb_addr *client, u64 meta)
{
#if LB_FAMILY == 6
	WR64(s + SNAT_SLOT_CLIENT, client->w[0]);
	WR64(s + SNAT_SLOT_CLIENT_END, client->w[1]);
	MB();
#endif
	WR64(s + SNAT_SLOT_META, meta);
}

/* Frees a slot whose first word was s0. Its generation stays, so that the next holder gets another one. Returns false if it changed. */
AI bool snat_slot_free(u64 *s, u64 s0)
{
	return CAS(s, s0, s0 & SNAT_SLOT_GEN) == s0;
}

/* Frees a slot if the flow with this value holds it. */
AI void snat_slot_release(u64 *s, u64 value, u64 owner, const lb_addr *client)
{
	u64 s0 = RD64(s);

	if (snat_slot_is_of(s, s0, value, owner, client))
		snat_slot_free(s, s0);
}

/* Reads a slot's client address; all of IPv4's is in the first word. */
AI void snat_slot_client(u64 *s, u64 s0, lb_addr *client)
{
#if LB_FAMILY == 4
	client->w[0] = s0 >> SNAT_SLOT_CLIENT_SHIFT;
#else
	client->w[0] = RD64(s + SNAT_SLOT_CLIENT);
	client->w[1] = RD64(s + SNAT_SLOT_CLIENT_END);
#endif
}

/* A slot as read at one moment: who holds the port. */
struct snat_view {
	u64 *slot;
	u64 word, meta; /* its first and last word */
	lb_addr client;
	u16 client_port;
};

/* Reads a slot. Returns false if it is free, or if its holder is changing. */
AI bool snat_slot_read(u64 *s, struct snat_view *view)
{
	u64 s0 = RD64(s);

	if (!SNAT_SLOT_IS_HELD(s0))
		return false;
	MB();
	view->slot = s;
	view->word = s0;
	view->meta = RD64(s + SNAT_SLOT_META);
	snat_slot_client(s, s0, &view->client);
	view->client_port = s0 >> SNAT_SLOT_CLIENT_PORT_SHIFT;
#if LB_FAMILY == 6
	MB();
	if (RD64(s) != s0)
		return false;
#endif
	return !SNAT_SLOT_IS_TORN(s0, view->meta);
}

AI u64 snat_view_backend(const struct snat_view *view)
{
	return SNAT_SLOT_BACKEND(view->meta);
}

AI u64 snat_view_service(const struct snat_view *view)
{
	return SNAT_SLOT_SERVICE(view->meta);
}

/* Returns the index of the next hop towards the client, 0 = not learned. */
AI u64 snat_view_nexthop(const struct snat_view *view)
{
	return FIELD(SNAT_META_CLIENT_HOP, view->meta);
}

/* --- the lease: how long a flow keeps its slot without a packet ---
 *
 * Any flow may take a slot whose lease is over. Only a flow that keeps its port (value_keeps_port) gets a full lease. The stamp of any
 * other is set into the past, so that the slot ends with its flow, and its age distinguishes such slots from the others
 * (snat_reclaim.h). */

/* Life of a slot without a packet of its flow, in units of SNAT_STAMP_TICKS: the flow's own, and twice the 256 ticks between two renewals. */
#define SNAT_LIFE (CFG(timeout_longest) / SNAT_STAMP_TICKS + 2 * 256 / SNAT_STAMP_TICKS + 2)

/* Returns how far the stamp of a short lease is set into the past, so that the lease ends with a flow of this time-out. */
AI u64 snat_back(u64 timeout)
{
	return SNAT_LIFE - timeout / SNAT_STAMP_TICKS - 2;
}

/* Returns how far the stamp of the flow's lease is set into the past, in units of SNAT_STAMP_TICKS: the age of a short lease that begins. */
AI u64 snat_lease_back(u64 value, u64 l4)
{
	if (value_keeps_port(value, l4))
		return 0;
	if (V_STATE(value) == CT_ESTABLISHED)
		return snat_back(CFG(timeout_udp));
	return snat_back(V_STATE(value) == CT_CLOSING ? CFG(timeout_closing) : CFG(timeout_new));
}

/* Returns the stamp of a lease that begins now: only a flow that keeps its port gets a full one. */
AI u64 snat_slot_stamp(u64 now, u64 value, u64 l4)
{
	return IN_FIELD(SNAT_META_STAMP, now / SNAT_STAMP_TICKS - snat_lease_back(value, l4));
}

/* Returns the age of the lease in units of SNAT_STAMP_TICKS, including the part set into the past. */
AI u64 snat_slot_age(u64 meta, u64 now)
{
	return SNAT_SLOT_UNITS(now) - SNAT_SLOT_STAMP(meta) & ((1ULL << SNAT_META_STAMP_BITS) - 1);
}

/* The same of the slot at `s`. */
AI u64 snat_slot_lease_age(u64 *s, u64 now)
{
	return snat_slot_age(RD64(s + SNAT_SLOT_META), now);
}

AI bool snat_slot_is_stale(u64 meta, u64 now)
{
	return snat_slot_age(meta, now) > SNAT_LIFE;
}

/* The same of the slot of `view`. */
AI u64 snat_view_age(const struct snat_view *view, u64 now)
{
	return snat_slot_age(view->meta, now);
}

/* Was the lease renewed in this unit of ticks? */
AI bool snat_view_is_stamped(const struct snat_view *view, u64 now)
{
	return SNAT_SLOT_STAMP(view->meta) == SNAT_SLOT_UNITS(now);
}

/* The same of the short lease of a UDP flow that was answered. */
AI bool snat_view_is_stamped_short(const struct snat_view *view, u64 now)
{
	return snat_slot_age(view->meta, now) == snat_back(CFG(timeout_udp));
}
