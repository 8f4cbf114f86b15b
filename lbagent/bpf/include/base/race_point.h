/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the points at which a test lets another CPU run between two steps: RACE_POINT(NAME). Shipped programs have no
 * code there. A test compiles them with LB_RACE_POINTS, the number of a helper that does not exist, and replaces its calls by
 * instructions that write what the other CPU would have written (tests/packet/race_points.py).
 */
#pragma once
#include "types.h"

#ifdef LB_RACE_POINTS
enum race_point {
	RACE_FLOW_CREATE = 1,  /* a new flow: no entry was found, no port is taken yet */
	RACE_SNAT_TAKEN = 2,   /* a new flow: it has its port, but no entry yet */
	RACE_ENTRY_CLAIM = 3,  /* a victim is chosen, but not taken */
	RACE_ENTRY_EXPIRE = 4, /* the sweeper has found an expired entry */
	RACE_ENTRY_LEAVE = 5,  /* an entry is in the new table, too, and is about to leave the old one */
	RACE_RECLAIM_FLOW = 6, /* a port is about to be taken from a flow that was never established */
	RACE_RECLAIM_SLOT = 7, /* the flow has lost the port, its slot is not free yet */
	RACE_ENTRY_END = 8,    /* the sweeper has found a flow whose frontend is removed, or whose backend has left the frontend */
	RACE_FLOW_DELETE = 9,  /* a flow that is to be deleted is as it was read */
};

static u64 (*race_call)(u64 point) = (void *)LB_RACE_POINTS;
#define RACE_POINT(name) race_call(RACE_##name)
#else
#define RACE_POINT(name) do {} while (0)
#endif
