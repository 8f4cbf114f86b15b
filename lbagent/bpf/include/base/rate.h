/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the rate limit of answers and of events: so many per second and CPU.
 */
#pragma once
#include "maps.h"

/* Token bucket in one u64: jiffies (low 32 bits) of the last refill, tokens in units of 1/HZ (high 32 bits).
 * Per CPU, so no atomics. An empty map is a full bucket: the first second's worth may be taken at once. One way out, or the verifier
 * follows the code after it twice. */
AI bool rate_admits(u64 *bucket, u64 rate)
{
	u64 now = jiffies() & 0xffffffff, hz = CFG(hz);
	u64 elapsed = (now - *bucket) & 0xffffffff, tokens = *bucket >> 32, admits;

	if (elapsed > hz)
		elapsed = hz;
	tokens += elapsed * rate;
	if (tokens > rate * hz)
		tokens = rate * hz;
	admits = 1 ^ SIGN(tokens - hz);
	*bucket = (tokens - admits * hz) << 32 | now;
	return admits;
}
