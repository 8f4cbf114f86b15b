/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains finding the holder of a SNAT port by a reply to it, and what a reply changes in the slot.
 */
#pragma once
#include "snat.h"

/* Does this packet come from the backend to which the holder of the slot has the port? */
AI bool snat_find_at(u64 *s, const struct lb_pkt *pk, struct snat_view *view)
{
	u64 path_meta;
	lb_path *path;

	if (!snat_slot_read(s, view))
		return false;
	path = path_of(snat_view_backend(view));
	path_meta = PATH_META(path);
	return path_between(path, &pk->saddr, &pk->daddr) && META_PORT(path_meta) == pk->sport && path_carries(path_meta, pk->proto);
}

/* Finds the holder of our port `pk->dport` towards the backend that sent `pk`. Returns false if it is free, or if `pk` is for a further
 * source address. */
AI bool snat_find(const struct lb_pkt *pk, struct snat_view *view)
{
	return snat_find_at(snat_slot_of(addr_hash(&pk->saddr, pk->sport, pk->proto), pk->dport), pk, view);
}

/* The same where `pk` is for a further source address. Asked second: one may be the first address of other backends. */
AI bool snat_find_further(const struct lb_pkt *pk, struct snat_view *view)
{
	u64 salt = further_salt(&pk->daddr);

	return salt && snat_find_at(snat_slot_of(addr_hash(&pk->saddr, pk->sport, pk->proto) + salt, pk->dport), pk, view);
}

AI bool snat_find_any(const struct lb_pkt *pk, struct snat_view *view)
{
	return snat_find(pk, view) || (FURTHER_SOURCES && snat_find_further(pk, view));
}

/* In the slots that are being left. */
AI bool snat_find_old(const struct lb_pkt *pk, struct snat_view *view)
{
	u64 hash = addr_hash(&pk->saddr, pk->sport, pk->proto), salt;

	if (snat_find_at(snat_old_slot_of(hash, pk->dport), pk, view))
		return true;
	if (!FURTHER_SOURCES)
		return false;
	salt = further_salt(&pk->daddr);
	return salt && snat_find_at(snat_old_slot_of(hash + salt, pk->dport), pk, view);
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

/* Notes a reply to the port of `view`: the lease, if the flow is established (`value`: the flow's, 0: not known), and the next hop towards
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
