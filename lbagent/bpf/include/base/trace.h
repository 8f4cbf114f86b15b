/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the points at which a dry program (LB_DRY: types.h) records what it found: TRACE(STEP, a, b). Other programs
 * have no code there. maps/trace_layout.py has the steps, and what their two words are.
 *
 * The trace is one value that only one run at a time uses: the number of records, then the records. Records beyond the last
 * overwrite the first; the reader sees by the number that some are missing.
 */
#pragma once
#include "types.h"

#if LB_IS_DRY
AI void trace(u64 step, u64 a, u64 b)
{
	volatile u64 *all = (u64 *)MAPVAL(lb_trace), *record;
	u64 n = *all;

	*all = n + 1;
	record = all + TRACE_WORDS + (n & (TRACE_RECORDS - 1)) * TRACE_WORDS;
	record[0] = step;
	record[1] = a;
	record[2] = b;
}
#define TRACE(step, a, b) trace(TRACE_##step, a, b)
#else
#define TRACE(step, a, b) do {} while (0)
#endif
