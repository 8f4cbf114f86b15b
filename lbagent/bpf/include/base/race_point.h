/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the places where a test lets another CPU come in between two steps: RACE_POINT(NAME). The programs that are
 * shipped have nothing there. A test compiles them with LB_RACE_POINTS, the number of a helper that does not exist, and puts
 * instructions in the place of its calls that write what the other CPU would have written (tests/packet/race_points.py).
 */
#pragma once
#include "types.h"

#ifdef LB_RACE_POINTS
enum race_point {
	RACE_FLOW_CREATE = 1,  /* a new flow: no entry was found, no port is taken yet */
	RACE_SNAT_TAKEN = 2,   /* it has its port, but no entry yet */
	RACE_ENTRY_CLAIM = 3,  /* a victim is chosen, but not taken */
	RACE_ENTRY_EXPIRE = 4, /* the sweeper has seen that an entry is over */
	RACE_ENTRY_LEAVE = 5,  /* an entry is in the new table as well, and leaves the old one */
	RACE_RECLAIM_FLOW = 6, /* a port is to be taken from a flow that was never established */
	RACE_RECLAIM_SLOT = 7, /* it was taken from the flow, its slot is not free yet */
	RACE_ENTRY_END = 8,    /* the sweeper has seen that a flow's frontend is gone, or has not its backend any more */
};

static u64 (*race_call)(u64 point) = (void *)LB_RACE_POINTS;
#define RACE_POINT(name) race_call(RACE_##name)
#else
#define RACE_POINT(name) do {} while (0)
#endif
