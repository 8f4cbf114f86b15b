/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what one program hands to the next: a per-CPU record, and the tail call to a slot CALL_NAME of the hook.
 *
 * The caller fills `pk` and what bpf/tail_calls.py says the program expects, then does lb_call(). A tail call that fails falls
 * through, so every call is followed by a verdict. The packet in the context is what `pk` describes: nothing was translated yet.
 * CALL_NAME is IPv4's slot; IPv6's is the next (FAMILY_CALL).
 */
#pragma once
#include "maps.h"
#include "parse.h"

/* Why a packet of a flow gets a backend chosen. */
#define CHOICE_NEW 0
#define CHOICE_RESELECT 1 /* the flow's backend is gone or takes no new flows: replace it where the value still is old_value */

#define RECLAIM_RUNS 8 /* of neighbouring SNAT ports, each run somewhere else */

struct lb_scratch {
	u64 hook_flags; /* PKT_INTERNAL, PKT_EGRESS, PKT_HANDED_OVER; first, where both families find it */
	struct lb_pkt pk;
	u64 hash;        /* of the flow: selects its buckets */
	u64 version;     /* of the primary bucket, read before the look-up that missed */
	u64 old_value;   /* CHOICE_RESELECT: the value word to replace */
	u32 reclaim_limit; /* with reclaim_flows: the last one's place in the order of candidates */
	volatile u32 reclaim_best[RECLAIM_RUNS]; /* with reclaim_flows: the best candidate of each run */
	u32 backend;     /* chosen backend id */
	u16 service;     /* service id: reverse NAT and counters */
	u8 backend_gen;
	u8 choice;       /* CHOICE_* */
	u8 forward;      /* FORWARD_LOCAL or another ForwardMode */
	u8 reclaim_flows; /* FORWARD_SNAT, no port was free: flows that were asked for theirs */
	u16 snat_port;   /* FORWARD_SNAT: the port that was reclaimed for the flow, host order; 0: one of those the hash leads to */
	volatile u16 snat_held; /* FORWARD_SNAT: the port that the flow holds already, host order; 0: none. Read back, as what follows */
	volatile u8 is_opening; /* a SYN to a frontend: the next packets are sent alike without an entry, by selection. Read back, too */
	/* The way that slow_path_resolve_egress() found. Of a value that is read back from a map the verifier knows nothing: it need not
	 * follow each way to its end. */
	volatile u8 out;  /* OUT_* */
	volatile u8 here; /* does the stack of this node get the packet? */
	volatile u64 out_macs, out_rest; /* OUT_NEXTHOP, OUT_NEIGHBOR: as struct nexthop */
	u32 answer;         /* REASON_REJECT_* or REASON_ANSWER_* */
	u32 answer_mtu;     /* bytes, for REASON_ANSWER_TOO_BIG and CALL_FRAGMENT */
};

_Static_assert(sizeof(struct lb_scratch) <= SCRATCH_SIZE, "lb_scratch holds lb_scratch");

/* Flags that come with the packet from the entry. */
#define HOOK_FLAGS(s) (HOOK_MARKS_SCOPE ? (s)->hook_flags & (PKT_INTERNAL | PKT_EGRESS | PKT_HANDED_OVER) : 0)

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

#define CONTINUE (-1) /* no verdict yet */

/* Counts a verdict under its reason and returns it. */
AI int verdict(lb_ctx *ctx, u32 reason, int action)
{
	count(reason, CTX_LEN(ctx));
	return action;
}

/* Answers the sender (CALL_ANSWER). `s->pk` is the untranslated packet. */
AI int answer(lb_ctx *ctx, struct lb_scratch *s, u32 reason, u32 mtu)
{
	s->answer = reason;
	s->answer_mtu = mtu;
	lb_call(ctx, FAMILY_CALL(CALL_ANSWER));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
