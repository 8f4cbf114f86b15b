/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains reading and comparing the flow table's entries, one entry for both directions of a flow (docs/datapath.md).
 * maps/flow_layout.py has their words bit by bit: E_* are the numbers of words, OWNER_*, VIP_*, V_* and SEEN_* places in them. Only
 * the headers of the flow table (ct_*.h, snat*.h) use these; others use ct.h.
 *
 * Every word a reader compares carries the entry's generation, so words of two incarnations never match together.
 * IPv6 addresses have no room for one: there the owner word is read again at the end.
 */
#pragma once
#include "ct_key.h"
#include "ct_value.h"

#define OWNER_BUSY (1ULL << OWNER_BUSY_SHIFT) /* with ports and address 0: being written */
#define OWNER_IS_HELD(owner) ((owner) >> OWNER_HELD_SHIFT) /* by a flow: neither free nor busy */
#define CT_ENTRY_WORDS ((LB_FAMILY == 4 ? FLOW4_SIZE : FLOW6_SIZE) / 8)

#if LB_FAMILY == 4
/* Does the entry hold the flow? The three words must carry one generation. */
AI bool ct_entry_match(u64 *e, const struct ct_key *k, u64 *value)
{
	u64 gen = RD64(e) ^ k->k0;

	if (gen > GEN_MASK)
		return false;
	*value = RD64(e + E_VALUE);
	return (RD64(e + E_VIP) ^ k->k1) == gen && !((*value ^ gen) & GEN_MASK);
}

#define ct_entry_match_frame(e, k, data, value) ct_entry_match(e, k, value)

/* Is it some flow of this client address, port and protocol? Reads its value and its VIP. */
AI bool ct_entry_match_client(u64 *e, const struct ct_key *k, u64 *value, lb_addr *vip, u16 *vip_port)
{
	u64 gen = RD64(e) ^ k->k0, w1;

	if (gen > GEN_MASK)
		return false;
	w1 = RD64(e + E_VIP);
	*value = RD64(e + E_VALUE);
	vip->w[0] = w1 >> VIP_SHIFT;
	*vip_port = w1 >> VIP_PORT_SHIFT;
	return !(((w1 ^ gen) | (*value ^ gen)) & GEN_MASK);
}

AI void ct_entry_write_key(u64 *e, const struct ct_key *k, u64 gen)
{
	WR64(e + E_VIP, k->k1 | gen);
}

/* Reads the key of the entry with this owner word; returns its hash. */
AI u64 ct_entry_key(u64 *e, u64 owner, struct ct_key *k)
{
	k->k0 = owner & ~GEN_MASK;
	k->k1 = RD64(e + E_VIP) & ~GEN_MASK;
	return mix(k->k0);
}

/* Reads the words of the client's address that are not in the owner word. */
AI void ct_entry_client(u64 *e, lb_addr *client)
{
	client->w[0] = 0;
}

/* The frontend's port in an entry whose owner word is or was `owner`. */
AI u16 ct_entry_vip_port(u64 *e, u64 owner)
{
	return RD64(e + E_VIP) >> VIP_PORT_SHIFT;
}

/* Sets bit 63 if the entry is another flow of the client of `k` to this backend, FORWARD_LOCAL, through another frontend. */
AI u64 ct_entry_clash(u64 *e, const struct ct_key *k, u64 backend)
{
	u64 v = RD64(e + E_VALUE), differ = (RD64(e) ^ k->k0) >> GEN_BITS, own = (RD64(e + E_VIP) ^ k->k1) >> GEN_BITS;

	differ |= (V_BACKEND(v) ^ backend) | value_not_local(v);
	differ = (differ >> 1 | (differ & 1)) - 1; /* bit 63 only if nothing differed */
	own -= 1;
	OPAQUE(differ);
	OPAQUE(own);
	return differ & ~own;
}

#else
AI bool ct_entry_match(u64 *e, const struct ct_key *k, u64 *value)
{
	u64 owner = RD64(e), gen = owner ^ k->owner, differ;

	if (gen > GEN_MASK)
		return false;
	MB();
	differ = (RD64(e + E_CLIENT) ^ k->client.w[0]) | (RD64(e + E_CLIENT_END) ^ k->client.w[1]);
	differ |= (RD64(e + E_VIP) ^ k->vip.w[0]) | (RD64(e + E_VIP_END) ^ k->vip.w[1]);
	*value = RD64(e + E_VALUE);
	MB();
	return !(differ | ((*value ^ gen) & GEN_MASK)) && RD64(e) == owner;
}

/* The same with the addresses of a plain frame, read from the frame: registers cannot hold all four. */
AI bool ct_entry_match_frame(u64 *e, const struct ct_key *k, const u8 *data, u64 *value)
{
	const u8 *at = data + ETH_HLEN + 8;
	u64 owner = RD64(e), gen = owner ^ k->owner;

	if (gen > GEN_MASK)
		return false;
	MB();
	if (RD64(e + E_CLIENT) != RD64(at) || RD64(e + E_CLIENT_END) != RD64(at + 8) || RD64(e + E_VIP) != RD64(at + 16) ||
	    RD64(e + E_VIP_END) != RD64(at + 24))
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
	differ = (RD64(e + E_CLIENT) ^ k->client.w[0]) | (RD64(e + E_CLIENT_END) ^ k->client.w[1]);
	vip->w[0] = RD64(e + E_VIP);
	vip->w[1] = RD64(e + E_VIP_END);
	*value = RD64(e + E_VALUE);
	*vip_port = owner >> OWNER_VIP_PORT_SHIFT;
	MB();
	return !(differ | ((*value ^ owner) & GEN_MASK)) && RD64(e) == owner;
}

AI void ct_entry_write_key(u64 *e, const struct ct_key *k, u64 gen)
{
	WR64(e + E_CLIENT, k->client.w[0]);
	WR64(e + E_CLIENT_END, k->client.w[1]);
	WR64(e + E_VIP, k->vip.w[0]);
	WR64(e + E_VIP_END, k->vip.w[1]);
}

AI u64 ct_entry_key(u64 *e, u64 owner, struct ct_key *k)
{
	k->owner = owner & ~GEN_MASK;
	k->client.w[0] = RD64(e + E_CLIENT);
	k->client.w[1] = RD64(e + E_CLIENT_END);
	k->vip.w[0] = RD64(e + E_VIP);
	k->vip.w[1] = RD64(e + E_VIP_END);
	return mix6(&k->client, owner >> OWNER_CLIENT_PORT_SHIFT << 16 | l4_number(OWNER_L4(owner)));
}

AI void ct_entry_client(u64 *e, lb_addr *client)
{
	client->w[0] = RD64(e + E_CLIENT);
	client->w[1] = RD64(e + E_CLIENT_END);
}

AI u16 ct_entry_vip_port(u64 *e, u64 owner)
{
	return owner >> OWNER_VIP_PORT_SHIFT;
}

AI u64 ct_entry_clash(u64 *e, const struct ct_key *k, u64 backend)
{
	u64 v = RD64(e + E_VALUE);
	u64 differ = ((RD64(e) ^ k->owner) & OWNER_CLIENT) | (RD64(e + E_CLIENT) ^ k->client.w[0]) | (RD64(e + E_CLIENT_END) ^ k->client.w[1]);
	u64 own = FIELD(OWNER_VIP_PORT, RD64(e) ^ k->owner) | (RD64(e + E_VIP) ^ k->vip.w[0]) | (RD64(e + E_VIP_END) ^ k->vip.w[1]);

	own = own >> 1 | (own & 1);
	differ |= (V_BACKEND(v) ^ backend) | value_not_local(v);
	differ = (differ >> 1 | (differ & 1)) - 1;
	own -= 1;
	OPAQUE(differ);
	OPAQUE(own);
	return differ & ~own;
}

#endif
