/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what one program hands to the next: a per-CPU record, and the tail call slots of a hook.
 *
 * Conventions: the caller fills `pk` (and the fields named at the slot), then lb_call(). A tail call that fails falls through,
 * so every call is followed by a verdict. The packet in the context is what `pk` describes: nothing was translated yet.
 * Slots are for IPv4; IPv6 is one more (FAMILY_CALL).
 */
#pragma once
#include "maps.h"
#include "parse.h"

#define CALL_PARSE_FULL 1 /* nothing in the record but hook_flags: parse all of it */
#define CALL_SLOW_PATH 3    /* pk: flow look-up, then service and selection */
#define CALL_FLOW_CREATE 5  /* pk, choice: make the flow and forward */
#define CALL_ICMP 7    /* pk without ports: an ICMP message that may quote a translated packet */
#define CALL_ANSWER 9  /* pk, answer, answer_mtu, answer_service: say so to the sender */
#define CALL_REPLY 11  /* pk: reply of a backend, by SNAT slot or by the local backend's flow */
#define CALL_SWEEP 13
#define CALL_SNAT_RECLAIM 15  /* pk, choice: no SNAT port was free at first sight */

/* Why a packet of a flow gets a backend chosen. */
#define CHOICE_NEW 0
#define CHOICE_RESELECT 1 /* the flow's backend is gone or takes no new flows: replace it where the value still is old_value */

/* Where a SNAT port is looked for. */
#define SNAT_PORTS_FIRST 0
#define SNAT_PORTS_OTHER 1 /* the first ones were all held */

struct lb_scratch {
	u64 hook_flags; /* PKT_INTERNAL, PKT_EGRESS; first, where both families find it */
	struct lb_pkt pk;
	u64 hash;        /* of the flow: selects its buckets */
	u64 version;     /* of the primary bucket, read before the look-up that missed */
	u64 old_value;   /* CHOICE_RESELECT: the value word to replace */
	u32 backend;     /* chosen backend id */
	u16 service;     /* service id: reverse NAT and counters */
	u8 backend_gen;
	u8 choice;       /* CHOICE_* */
	u8 forward;      /* enum forward */
	u8 snat_ports;   /* SNAT_PORTS_*, with FORWARD_SNAT */
	u8 pad[2];
	u32 answer;         /* REASON_REJECT_* or REASON_ANSWER_* */
	u32 answer_mtu;     /* bytes, for REASON_ANSWER_TOO_BIG */
};

_Static_assert(sizeof(struct lb_scratch) <= SCRATCH_SIZE, "lb_scratch holds lb_scratch");

/* Flags that come with the packet from the entry. */
#define HOOK_FLAGS(s) (HOOK_MARKS_SCOPE ? (s)->hook_flags & (PKT_INTERNAL | PKT_EGRESS) : 0)

/* Returns the CPU's record; NULL never happens, but the verifier wants it asked. */
AI struct lb_scratch *scratch(void)
{
	u32 zero = 0;

	return map_lookup(MAPFD(lb_scratch), &zero);
}

/* Goes to a slot, a constant. The kernel makes a jump of a call whose slot is constant, and takes 13 ns for one that is not: the
 * empty statement keeps the compiler from merging two calls into one. */
#define lb_call(ctx, slot) \
	do { \
		tail_call(ctx, (void *)map_word(MAP_WORD_FD, HOOK_CALLS), slot); \
		asm volatile("" ::"i"(slot)); \
	} while (0)

/* Counts a verdict under its reason and returns it. */
AI int verdict(lb_ctx *ctx, u32 reason, int action)
{
	count(reason, CTX_LEN(ctx));
	return action;
}

/* Has the sender answered. `s->pk` is the untranslated packet. */
AI int answer(lb_ctx *ctx, struct lb_scratch *s, u32 reason, u32 mtu)
{
	s->answer = reason;
	s->answer_mtu = mtu;
	lb_call(ctx, FAMILY_CALL(CALL_ANSWER));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
