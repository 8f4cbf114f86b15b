/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the key of a flow and its hash: client, frontend and protocol, laid out as an entry's words have them
 * (maps/flow_layout.py), generation 0. The hash takes the client's address, port and protocol only: both directions of a flow have these.
 */
#pragma once
#include "l4.h"
#include "maps.h"

#define OWNER_L4(owner) FIELD(OWNER_L4, owner)

AI u64 mix(u64 k)
{
	k ^= CFG(seed0);
	k *= (CFG(seed1) | 1);
	k ^= k >> 32;
	k *= 0x9FB21C651E98DF25ULL;
	return k ^ k >> 29;
}

#if LB_FAMILY == 4
struct ct_key {
	u64 k0, k1; /* owner word, VIP word */
};

AI u64 ct_key_make(struct ct_key *k, const lb_addr *client, u16 client_port, const lb_addr *vip, u16 vip_port, u8 proto)
{
	k->k0 = (u64)client->w[0] << OWNER_CLIENT_SHIFT | (u64)client_port << OWNER_CLIENT_PORT_SHIFT | L4_FIELD(proto, OWNER_L4_SHIFT);
	k->k1 = (u64)vip->w[0] << VIP_SHIFT | (u64)vip_port << VIP_PORT_SHIFT;
	return mix(k->k0);
}

AI u64 addr_hash(const lb_addr *a, u16 port, u8 proto)
{
	return mix((u64)a->w[0] << 32 | (u64)port << 16 | proto | 0x8000);
}

/* Key of a flow's spilled reply row: the client, and the backend in the frontend's place. */
AI void ct_key_reply(struct ct_key *k, const struct ct_key *flow, const lb_addr *backend, u16 port)
{
	k->k0 = flow->k0;
	k->k1 = (u64)backend->w[0] << VIP_SHIFT | (u64)port << VIP_PORT_SHIFT | REPLY_MARK;
}

/* Makes the key of (client, backend) that of a reply row. */
AI void ct_key_mark_reply(struct ct_key *k)
{
	k->k1 |= REPLY_MARK;
}

#define KEY_OWNER(k) ((k)->k0)
#define KEY_VIP_PORT(k) ((u16)((k)->k1 >> VIP_PORT_SHIFT))
#define KEY_CLIENT(k) ((lb_addr *)0) /* the owner word holds it */
#else
struct ct_key {
	u64 owner;
	lb_addr client, vip;
};
#define OWNER_CLIENT (OWNER_CLIENT_PORT_MASK | OWNER_L4_MASK) /* the bits that do not depend on the VIP */
#define OWNER_VIP_TAIL(vip) (((vip)->w[1] >> (64 - OWNER_VIP_TAIL_BITS)) << OWNER_VIP_TAIL_SHIFT)

AI u64 mix6(const lb_addr *a, u64 k)
{
	u64 x = (a->w[0] ^ CFG(seed0)) * (CFG(seed1) | 1);

	x ^= x >> 32;
	x = (x + a->w[1]) * 0x9FB21C651E98DF25ULL;
	x = (x ^ x >> 32 ^ k * 0x9E3779B97F4A7C15ULL) * (CFG(seed0) | 1);
	return x ^ x >> 29;
}

AI u64 ct_key_make(struct ct_key *k, const lb_addr *client, u16 client_port, const lb_addr *vip, u16 vip_port, u8 proto)
{
	k->client = *client;
	k->vip = *vip;
	k->owner = (u64)client_port << OWNER_CLIENT_PORT_SHIFT | (u64)vip_port << OWNER_VIP_PORT_SHIFT | OWNER_VIP_TAIL(vip) |
		   L4_FIELD(proto, OWNER_L4_SHIFT);
	return mix6(client, (u64)client_port << 16 | proto);
}

AI u64 addr_hash(const lb_addr *a, u16 port, u8 proto)
{
	return mix6(a, (u64)port << 16 | proto | 0x8000);
}

AI void ct_key_reply(struct ct_key *k, const struct ct_key *flow, const lb_addr *backend, u16 port)
{
	k->client = flow->client;
	k->vip = *backend;
	k->owner = (flow->owner & OWNER_CLIENT) | (u64)port << OWNER_VIP_PORT_SHIFT | OWNER_VIP_TAIL(backend) | REPLY_MARK;
}

AI void ct_key_mark_reply(struct ct_key *k)
{
	k->owner |= REPLY_MARK;
}

#define KEY_OWNER(k) ((k)->owner)
#define KEY_VIP_PORT(k) ((u16)((k)->owner >> OWNER_VIP_PORT_SHIFT))
#define KEY_CLIENT(k) (&(k)->client)
#endif
