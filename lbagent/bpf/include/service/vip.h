/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the look-up of an announced address: lb_vip (announce.h), lb_former_leader (former_leader.h). Entries expire
 * unless an agent extends them. Also: an address as both families' maps have it.
 */
#pragma once
#include "maps.h"
#include "wire.h"

#define ANNOUNCES (CFG(flags) & CONFIG_ANNOUNCE) /* --announce, a constant for the verifier */

/* Writes an address to the 16 bytes of a key, IPv4 as ::ffff:a.b.c.d. */
AI void addr_map(u32 *words, const lb_addr *address)
{
#if LB_FAMILY == 4
	words[0] = words[1] = 0;
	words[2] = HTONL(0xffff);
	words[3] = address->w[0];
#else
	words[0] = address->w[0];
	words[1] = address->w[0] >> 32;
	words[2] = address->w[1];
	words[3] = address->w[1] >> 32;
#endif
}

/* Returns the entry of an address on a device; NULL: there is none, or it has expired. */
AI struct lb_vip *vip_find(void *map, u64 ifindex, const lb_addr *address)
{
	struct lb_vip_key key = {.ifindex = ifindex};
	struct lb_vip *vip;

	addr_map((u32 *)key.address, address); /* the key is aligned to these */
	vip = map_lookup(map, &key);
	return vip && coarse_ns() < RD64(&vip->until) ? vip : 0;
}
