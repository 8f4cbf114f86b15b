/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the layout of the flow table's entries, one entry for both directions of a flow (docs/datapath.md).
 * Only ct.h, snat.h and sweep.h include it.
 *
 * Every word a reader compares carries the entry's generation (14 bits), so words of two incarnations never match together.
 * IPv6 addresses have no room for one: there the owner word is read again at the end.
 */
#pragma once
#include "maps.h"
#include "parse.h"

#define GEN_MASK 0x3fffULL
#define OWNER_BUSY 0x8000ULL /* with ports and address 0: being written */

/* Value word: backend 20 | its generation 8 | SNAT port 16 (0 = none) | FIN seen 2 | state 2 | SNAT slot generation 2 | generation 14 */
#define V_BACKEND(v) ((u64)(v) >> 44)
#define V_BACKEND_GEN(v) ((u64)(v) >> 36 & 0xff)
#define V_SNAT(v) ((u16)((v) >> 20)) /* network order */
#define V_STATE(v) ((u64)(v) >> 16 & 3)
#define V_STATE_MASK (3ULL << 16)
#define V_FIN_CLIENT (1ULL << 18)
#define V_FIN_BACKEND (1ULL << 19)
#define V_SNAT_SLOT_GEN(v) ((u64)(v) >> 14 & 3)
#define CT_NEW 0ULL /* a SYN, or UDP without a reply */
#define CT_EST 1ULL
#define CT_CLOSING 2ULL /* RST, or FIN of both sides */
#define CT_MID 3ULL     /* the first packet seen was no SYN */

/* Seen word: last seen 16 (ticks) | bucket word 16 | service id 16 | next hop towards the client 12 */
#define SEEN_SERVICE(sp) (*((u16 *)(sp) + 2))
#define SEEN_NEXTHOP(sp) (*((u16 *)(sp) + 3))

#define PROTO_BITS(proto) ((u64)((proto) & 1) << 14) /* TCP is 6, UDP 17 */
#define OWNER_IS_UDP(word) ((u64)(word) >> 14 & 1)

AI u64 mix(u64 k)
{
	k ^= CFG(seed0);
	k *= (CFG(seed1) | 1);
	k ^= k >> 32;
	k *= 0x9FB21C651E98DF25ULL;
	return k ^ k >> 29;
}

#if LB_FAMILY == 4
#define CT_ENTRY_WORDS 4
#define E_VALUE 2
#define E_SEEN 3
/* k0: client address 32 | client port 16 | protocol 2; k1: VIP address 32 | VIP port 16 */
struct ct_key {
	u64 k0, k1;
};

AI u64 ct_key_make(struct ct_key *k, const lb_addr *client, u16 client_port, const lb_addr *vip, u16 vip_port, u8 proto)
{
	k->k0 = (u64)client->w[0] << 32 | (u64)client_port << 16 | PROTO_BITS(proto);
	k->k1 = (u64)vip->w[0] << 32 | (u64)vip_port << 16;
	return mix(k->k0);
}

AI u64 addr_hash(const lb_addr *a, u16 port, u8 proto)
{
	return mix((u64)a->w[0] << 32 | (u64)port << 16 | proto | 0x8000);
}

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

#define KEY_OWNER(k) ((k)->k0)
#define KEY_CLIENT(k) ((lb_addr *)0) /* the owner word holds it */
#else
#define CT_ENTRY_WORDS 8
#define E_VALUE 5
#define E_SEEN 6
/* owner: client port 16 | VIP port 16 | some bits of the VIP 16 | protocol 2 */
struct ct_key {
	u64 owner;
	lb_addr client, vip;
};
#define OWNER_CLIENT 0xffff00000000c000ULL /* the bits that do not depend on the VIP */

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
	k->owner = (u64)client_port << 48 | (u64)vip_port << 32 | (vip->w[1] >> 48) << 16 | PROTO_BITS(proto);
	return mix6(client, (u64)client_port << 16 | proto);
}

AI u64 addr_hash(const lb_addr *a, u16 port, u8 proto)
{
	return mix6(a, (u64)port << 16 | proto | 0x8000);
}

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

#define KEY_OWNER(k) ((k)->owner)
#define KEY_CLIENT(k) (&(k)->client)
#endif

_Static_assert(CT_ENTRY_WORDS * 8 == (LB_FAMILY == 4 ? FLOW4_SIZE : FLOW6_SIZE), "entry size");
