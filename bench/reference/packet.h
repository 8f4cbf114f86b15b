/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writes a packet of a selected flow, with correct checksums: used by the wrapper (undo.c) and the generators (frames.c).
 *
 * A tuple is computed (flow number -> client address and port) or read from a list. Checksums stay constant because one
 * word balances what varies: the IPv4 identification for the header, the first payload word for TCP and UDP. */
#pragma once
#include "common.h"

struct ends { struct addr src, dst; u16 sport, dport; u32 pad; };

struct control {
	u64 seq;        /* packets so far, those of the flood not counted */
	u64 mul, mask;  /* flow = (seq * mul) & mask, an odd multiplier visits every flow once */
	u64 base;       /* first flow number */
	u64 list;       /* 1: tuples come from the list, index = flow */
	u64 flood;      /* 0, or 2^n - 1: so many flood packets, of flows never seen before, to one of the others */
	u64 flood_seq;
	u64 flood_shift; /* each flood flow sends 1 << shift packets in a row */
	struct addr src, dst; /* of flow 0 */
	struct addr flood_src;
	u16 dport;
	u16 flags, flood_flags; /* byte 13 of TCP after the data offset: one 16-bit word of the header */
	u16 proto;
	u64 answer;     /* byte 13 of TCP and the data offset before it, or any number for UDP: what the backend answers; 0: nothing */
	u64 answer_due; /* the last packet is one that the backend would answer */
	u8 eth[16];     /* destination and source MAC, EtherType */
	u64 ip[5];      /* IP header, checksum right for addresses and identification 0 */
	u64 l4[3];      /* TCP or UDP header, checksum right for addresses, ports, flags and first payload word 0 */
};

#define CONTROL ((struct control *)MAPVAL(undo_control))
#define PORTS 14 /* bits of the flow number that go into the client's port */

inline_fn void number(struct ends *t, const struct addr *first, u64 flow)
{
	t->src = *first;
#if FAMILY == 4
	t->src.w[0] += HTONL((u32)(flow >> PORTS));
#else
	t->src.w[1] += (u64)HTONL((u32)(flow >> PORTS)) << 32;
#endif
	t->sport = HTONS(1024 + (flow & ((1 << PORTS) - 1)));
}

inline_fn u16 choose(struct control *c, struct ends *t)
{
	u64 n = c->seq;
	c->answer_due = !c->flood && !c->list;
	if ((n + c->flood_seq) & c->flood) {
		c->answer_due = 1;
		number(t, &c->flood_src, c->flood_seq++ >> c->flood_shift);
		t->dst = c->dst;
		t->dport = c->dport;
		return c->flood_flags;
	}
	c->seq = n + 1;
	u64 flow = ((n * c->mul) & c->mask) + c->base;
	if (c->list) {
		*t = *(struct ends *)(MAPVAL(undo_list) + (flow & LIST_MASK) * sizeof(*t));
		return c->flags;
	}
	number(t, &c->src, flow);
	t->dst = c->dst;
	t->dport = c->dport;
	return c->flags;
}

/* Writes everything that a program may have changed; `tag` is the sum of the caller's own payload words. */
inline_fn void write_packet(u8 *data, struct control *c, struct ends *t, u16 flags, u64 tag)
{
	u64 addresses = addr_sum(&t->src) + addr_sum(&t->dst);
	u64 l4 = addresses + t->sport + t->dport + tag;
	*(u64 *)data = *(u64 *)c->eth;
	*(u32 *)(data + 8) = *(u32 *)(c->eth + 8);
	*(u16 *)(data + 12) = *(u16 *)(c->eth + 12);
	*(u64 *)(data + 14) = c->ip[0];
#if FAMILY == 4
	*(u32 *)(data + 22) = c->ip[1];
	*(u16 *)(data + 18) = ~fold(addresses);
	*(u32 *)(data + SRC_AT) = t->src.w[0];
	*(u32 *)(data + DST_AT) = t->dst.w[0];
#else
	*(u64 *)(data + SRC_AT) = t->src.w[0];
	*(u64 *)(data + SRC_AT + 8) = t->src.w[1];
	*(u64 *)(data + DST_AT) = t->dst.w[0];
	*(u64 *)(data + DST_AT + 8) = t->dst.w[1];
#endif
	*(u16 *)(data + L4_AT) = t->sport;
	*(u16 *)(data + L4_AT + 2) = t->dport;
	if (c->proto == TCP) {
		*(u16 *)(data + L4_AT + 12) = flags;
		*(u16 *)(data + L4_AT + 16) = c->l4[2];
		*(u16 *)(data + L4_AT + 20) = ~fold(l4 + flags);
	} else if (c->proto == SCTP) { /* its CRC32c is corrected by a difference: any one but 0 does */
		*(u32 *)(data + L4_AT + 8) = c->l4[1];
		*(u16 *)(data + L4_AT + 12) = flags;
	} else {
		*(u16 *)(data + L4_AT + 6) = c->l4[0] >> 48;
		*(u16 *)(data + L4_AT + 8) = ~fold(l4);
	}
}

/* If the frame is the last packet as a program forwarded it to a backend: sets the ends to those of the backend's answer. */
inline_fn int answered(u8 *data, struct control *c, struct ends *t)
{
	u64 due = c->answer && c->answer_due, same = 0;

	c->answer_due = 0;
	for (int i = 0; i < ADDR_WORDS; i++) {
		t->dst.w[i] = ((struct addr *)(data + SRC_AT))->w[i];
		t->src.w[i] = ((struct addr *)(data + DST_AT))->w[i];
		same |= t->src.w[i] ^ c->dst.w[i];
	}
	t->dport = *(u16 *)(data + L4_AT);
	t->sport = *(u16 *)(data + L4_AT + 2);
	return due && same && t->sport;
}
