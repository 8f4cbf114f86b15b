/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the layout of the flow table's entries, one entry for both directions of a flow (docs/datapath.md): layout 1.
 * Only the headers of the flow table (ct_*.h, snat*.h) know its words; others use ct.h.
 *
 * Every word a reader compares carries the entry's generation (14 bits), so words of two incarnations never match together.
 * IPv6 addresses have no room for one: there the owner word is read again at the end.
 *
 * Bit budget, from the lowest bit of each word:
 *   IPv4 owner    generation 14 | enum l4 2 | client port 16 | client address 32; port and address 0: free, bit 15 with them: busy
 *   IPv4 VIP      generation 14 | not used 2 (0) | VIP port 16 | VIP address 32
 *   IPv6 owner    generation 14 | enum l4 2 | bits of the VIP 16 | VIP port 16 | client port 16; then the addresses, 128 each
 *   value         generation 14 | SNAT slot generation 2 | state 2 | FIN 2 | forward word 16 | backend's generation 8 | backend 20:
 *                 full, but for modes: without a SNAT port the forward word has 251 numbers to give
 *   seen          last seen 16 (ticks) | bucket word 16 | service 16 | next hop towards the client 12 | not used 4 (0)
 *   bucket word   way 0: insert version; way 1: stamps of second bucket and spill map, 8 each; ways 2 and 3: not used
 *   IPv6 sum      L4 checksum difference 16 | mark 48
 */
#pragma once
#include "ct_key.h"
#include "ct_value.h"

#define OWNER_BUSY 0x8000ULL /* with ports and address 0: being written */
#define OWNER_IS_HELD(owner) ((owner) >> 16) /* by a flow: neither free nor busy */

#if LB_FAMILY == 4
#define CT_ENTRY_WORDS 4
#define E_VALUE 2
#define E_SEEN 3
/* Does the entry hold the flow? The three words must carry one generation. */
AI bool ct_entry_match(u64 *e, const struct ct_key *k, u64 *value)
{
	u64 gen = RD64(e) ^ k->k0;

	if (gen > GEN_MASK)
		return false;
	*value = RD64(e + E_VALUE);
	return (RD64(e + 1) ^ k->k1) == gen && !((*value ^ gen) & GEN_MASK);
}

#define ct_entry_match_frame(e, k, data, value) ct_entry_match(e, k, value)

/* Is it some flow of this client address, port and protocol? Reads its value and its VIP. */
AI bool ct_entry_match_client(u64 *e, const struct ct_key *k, u64 *value, lb_addr *vip, u16 *vip_port)
{
	u64 gen = RD64(e) ^ k->k0, w1;

	if (gen > GEN_MASK)
		return false;
	w1 = RD64(e + 1);
	*value = RD64(e + E_VALUE);
	vip->w[0] = w1 >> 32;
	*vip_port = w1 >> 16;
	return !(((w1 ^ gen) | (*value ^ gen)) & GEN_MASK);
}

AI void ct_entry_write_key(u64 *e, const struct ct_key *k, u64 gen)
{
	WR64(e + 1, k->k1 | gen);
}

/* Reads the key of the entry with this owner word; returns its hash. */
AI u64 ct_entry_key(u64 *e, u64 owner, struct ct_key *k)
{
	k->k0 = owner & ~GEN_MASK;
	k->k1 = RD64(e + 1) & ~GEN_MASK;
	return mix(k->k0);
}

/* Reads the client's address as far as the owner word does not hold it. */
AI void ct_entry_client(u64 *e, lb_addr *client)
{
	client->w[0] = 0;
}

/* Sets bit 63 if the entry is another flow of the client of `k` to this backend, FORWARD_LOCAL, through another frontend. */
AI u64 ct_entry_clash(u64 *e, const struct ct_key *k, u64 backend)
{
	u64 v = RD64(e + E_VALUE), differ = (RD64(e) ^ k->k0) >> 14, own = (RD64(e + 1) ^ k->k1) >> 14;

	differ |= (V_BACKEND(v) ^ backend) | value_not_local(v);
	differ = (differ >> 1 | (differ & 1)) - 1; /* bit 63 only if nothing differed */
	own -= 1;
	OPAQUE(differ);
	OPAQUE(own);
	return differ & ~own;
}

#else
#define CT_ENTRY_WORDS 8
#define E_VALUE 5
#define E_SEEN 6
AI bool ct_entry_match(u64 *e, const struct ct_key *k, u64 *value)
{
	u64 owner = RD64(e), gen = owner ^ k->owner, differ;

	if (gen > GEN_MASK)
		return false;
	MB();
	differ = (RD64(e + 1) ^ k->client.w[0]) | (RD64(e + 2) ^ k->client.w[1]);
	differ |= (RD64(e + 3) ^ k->vip.w[0]) | (RD64(e + 4) ^ k->vip.w[1]);
	*value = RD64(e + E_VALUE);
	MB();
	return !(differ | ((*value ^ gen) & GEN_MASK)) && RD64(e) == owner;
}

/* The same with the addresses of a plain frame, which are where they are: four of them are too many to keep. */
AI bool ct_entry_match_frame(u64 *e, const struct ct_key *k, const u8 *data, u64 *value)
{
	const u8 *at = data + ETH_HLEN + 8;
	u64 owner = RD64(e), gen = owner ^ k->owner;

	if (gen > GEN_MASK)
		return false;
	MB();
	if (RD64(e + 1) != RD64(at) || RD64(e + 2) != RD64(at + 8) || RD64(e + 3) != RD64(at + 16) || RD64(e + 4) != RD64(at + 24))
		return false;
	*value = RD64(e + E_VALUE);
	MB();
	return !((*value ^ gen) & GEN_MASK) && RD64(e) == owner;
}

AI bool ct_entry_match_client(u64 *e, const struct ct_key *k, u64 *value, lb_addr *vip, u16 *vip_port)
{
	u64 owner = RD64(e), differ;

	if ((owner ^ k->owner) & OWNER_CLIENT)
		return false;
	MB();
	differ = (RD64(e + 1) ^ k->client.w[0]) | (RD64(e + 2) ^ k->client.w[1]);
	vip->w[0] = RD64(e + 3);
	vip->w[1] = RD64(e + 4);
	*value = RD64(e + E_VALUE);
	*vip_port = owner >> 32;
	MB();
	return !(differ | ((*value ^ owner) & GEN_MASK)) && RD64(e) == owner;
}

AI void ct_entry_write_key(u64 *e, const struct ct_key *k, u64 gen)
{
	WR64(e + 1, k->client.w[0]);
	WR64(e + 2, k->client.w[1]);
	WR64(e + 3, k->vip.w[0]);
	WR64(e + 4, k->vip.w[1]);
}

AI u64 ct_entry_key(u64 *e, u64 owner, struct ct_key *k)
{
	k->owner = owner & ~GEN_MASK;
	k->client.w[0] = RD64(e + 1);
	k->client.w[1] = RD64(e + 2);
	k->vip.w[0] = RD64(e + 3);
	k->vip.w[1] = RD64(e + 4);
	return mix6(&k->client, owner >> 48 << 16 | l4_number(OWNER_L4(owner)));
}

AI void ct_entry_client(u64 *e, lb_addr *client)
{
	client->w[0] = RD64(e + 1);
	client->w[1] = RD64(e + 2);
}

AI u64 ct_entry_clash(u64 *e, const struct ct_key *k, u64 backend)
{
	u64 v = RD64(e + E_VALUE);
	u64 differ = ((RD64(e) ^ k->owner) & OWNER_CLIENT) | (RD64(e + 1) ^ k->client.w[0]) | (RD64(e + 2) ^ k->client.w[1]);
	u64 own = ((RD64(e) ^ k->owner) >> 32 & 0xffff) | (RD64(e + 3) ^ k->vip.w[0]) | (RD64(e + 4) ^ k->vip.w[1]);

	own = own >> 1 | (own & 1);
	differ |= (V_BACKEND(v) ^ backend) | value_not_local(v);
	differ = (differ >> 1 | (differ & 1)) - 1;
	own -= 1;
	OPAQUE(differ);
	OPAQUE(own);
	return differ & ~own;
}

#endif

_Static_assert(CT_ENTRY_WORDS * 8 == (LB_FAMILY == 4 ? FLOW4_SIZE : FLOW6_SIZE), "entry size");
