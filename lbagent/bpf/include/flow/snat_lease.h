/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the lease of a SNAT slot: how long it stays with its flow without a sign of it. A slot whose lease is over may be
 * taken by any flow. The lease is full only where the flow keeps its port (value_keeps_port); else the stamp is put back, so that
 * it ends with the flow, and its age tells such slots from the others (snat_reclaim.h).
 */
#pragma once
#include "snat_slot.h"

/* Life of a slot without a sign of its flow, in units of SNAT_STAMP_TICKS: the flow's own, and twice the 256 ticks between two renewals. */
#define SNAT_LIFE (CFG(timeout_longest) / SNAT_STAMP_TICKS + 2 * 256 / SNAT_STAMP_TICKS + 2)

/* Returns by what the stamp of a short lease is put back, so that it ends with a flow of this time-out. */
AI u64 snat_back(u64 timeout)
{
	return SNAT_LIFE - timeout / SNAT_STAMP_TICKS - 2;
}

/* Returns by what the stamp of the flow's lease is put back, in units of SNAT_STAMP_TICKS: the age of a short lease that begins. */
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

/* Returns the age of the lease in units of SNAT_STAMP_TICKS, what was put back included. */
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
