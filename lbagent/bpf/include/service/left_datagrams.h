/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the look-up of UDP conversations that another data plane translates: lb{4,6}_left has them, each until the
 * kernel's connection tracking forgets it unless an agent extends it (targets/bpf/left_datagrams.py).
 */
#pragma once
#include "ct_key.h"

/* The key is copied: a flow's key may be in a register pair or in the scratch area. */
AI bool left_datagrams_alive(const struct ct_key *flow)
{
	struct ct_key key = *flow;
	u64 *until = map_lookup(FAMILY_FD(left), &key);

	return until && coarse_ns() < RD64(until);
}
