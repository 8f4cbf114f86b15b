/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the rate limit of answers and of events: so many per second and CPU.
 */
#pragma once
#include "maps.h"

/* Token bucket in one u64: jiffies (low 32 bits) of the last refill, tokens in units of 1/HZ (high 32 bits).
 * Per CPU, so no atomics. An empty map is a full bucket: the first second's worth may be taken at once. No branch: the verifier would
 * follow the code after it for each. */
AI bool rate_admits(u64 *bucket, u64 rate)
{
	u64 now = jiffies() & 0xffffffff, hz = CFG(hz);
	u64 elapsed = (now - *bucket) & 0xffffffff, tokens = *bucket >> 32, admits;

	tokens = min64(tokens + min64(elapsed, hz) * rate, rate * hz);
	admits = 1 ^ SIGN(tokens - hz);
	*bucket = (tokens - admits * hz) << 32 | now;
	return admits;
}
