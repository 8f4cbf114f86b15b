/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what one program passes to the next: a per-CPU record, and the tail call to slot CALL_NAME of the hook.
 *
 * The caller fills `pk` and the fields that bpf/tail_calls.py lists for the program, then calls lb_call(). A failed tail call falls
 * through, so every call is followed by a verdict. The packet in the context matches `pk`: it is not translated yet. CALL_NAME is
 * the slot of IPv4; IPv6 has the next one (FAMILY_CALL).
 */
#pragma once
#include "event.h"
#include "maps.h"
#include "parse.h"

/* Why a backend is selected for a packet. */
#define CHOICE_NEW 0
#define CHOICE_RESELECT 1 /* the flow's backend is gone or takes no new flows: replace it if the value is still old_value */

/* How a new flow of a Service with rules gets its backend. */
#define RULES_DRAWN 1  /* by the slow path, which only has to let it in */
#define RULES_CHOOSE 2 /* by CALL_CHOOSE */

#define RECLAIM_RUNS 8 /* runs of neighbouring SNAT ports, spread over the range */

struct lb_scratch {
	u64 hook_flags; /* PKT_INTERNAL, PKT_EGRESS, PKT_HANDED_OVER; first, at the same offset for both families */
	struct lb_pkt pk;
	u64 hash;        /* of the flow: selects its buckets */
	u64 version;     /* of the primary bucket, read before the look-up that missed */
	u64 old_value;   /* CHOICE_RESELECT: the value word to replace */
	union { /* CALL_SNAT_RECLAIM needs the first part; CALL_CHOOSE, which comes before it, the second */
		struct {
			u32 reclaim_limit; /* with reclaim_flows: position of the last candidate in the order */
			volatile u32 reclaim_best[RECLAIM_RUNS]; /* with reclaim_flows: the best candidate of each run */
		};
		struct {
			u32 rules_target; /* CALL_CHOOSE: the master entry of a Service with rules */
			u32 rules_preferred; /* the backend of the client's affinity or of the Maglev table, full or not; 0: none */
			u16 rules_count, rules_flags, rules_from; /* its flags2 above its flags; the slot from which the next search begins */
			u16 rules_port, rules_last_port; /* the ports of its key */
			u8 rules_scope, rules_scanned;             /* scope of its key; searches that were done */
		};
	};
	u32 backend;     /* chosen backend id */
	u16 service;     /* service id: reverse NAT and counters */
	u8 backend_gen;
	u8 choice;       /* CHOICE_* */
	u8 forward;      /* FORWARD_LOCAL or another ForwardMode */
	u8 reclaim_flows; /* FORWARD_SNAT, no port was free: number of flows checked for a port to reclaim */
	u16 snat_port;   /* FORWARD_SNAT: the port reclaimed for the flow, host order; 0: a port selected by the hash */
	volatile u16 snat_held; /* FORWARD_SNAT: the port that the flow already holds, host order; 0: none. Read back, like the fields below */
	volatile u8 is_opening; /* a SYN to a frontend: the next packets select the same backend without an entry. Read back, too */
	/* The egress path that slow_path_resolve_egress() found. A value read back from a map is unknown to the verifier, so it does not
	 * follow each path to its end. */
	volatile u8 out;  /* OUT_* */
	volatile u8 here; /* is the packet delivered to this node's stack? */
	volatile u64 out_macs, out_rest; /* OUT_NEXTHOP, OUT_NEIGHBOR: as struct nexthop */
	u32 answer;         /* REASON_REJECT_* or REASON_ANSWER_* */
	u32 answer_mtu;     /* bytes, for REASON_ANSWER_TOO_BIG and CALL_FRAGMENT */
	u8 has_rules;       /* RULES_*: does the flow's Service have rules? */
	u8 event_reason;    /* CALL_EVENT: the verdict's reason, and the verdict */
	u8 event_verdict;
	u8 sctp_refusal;    /* SCTP: why the packet opens no flow, a reason; 0: it is an INIT that may */
};

_Static_assert(sizeof(struct lb_scratch) <= SCRATCH_SIZE, "lb_scratch holds lb_scratch");

/* Flags of the packet that its entry point set. */
#define HOOK_FLAGS(s) (HOOK_MARKS_SCOPE ? (s)->hook_flags & (PKT_INTERNAL | PKT_EGRESS | PKT_HANDED_OVER) : 0)

/* Returns the CPU's record. It is never NULL, but the verifier requires the check. */
AI struct lb_scratch *scratch(void)
{
	u32 zero = 0;

	return map_lookup(MAPFD(lb_scratch), &zero);
}

/* Calls a slot, a constant. The kernel turns a call with a constant slot into a jump; any other call takes 13 ns. The empty
 * statement keeps the compiler from merging two calls into one. */
#define lb_call(ctx, slot) \
	do { \
		tail_call(ctx, (void *)map_word(MAP_WORD_FD, HOOK_CALLS), slot); \
		asm volatile("" ::"i"(slot)); \
	} while (0)

#define CONTINUE (-1) /* no verdict yet */

/* A packet of no flow yet: what an event says about it. Every way into the slow path does this. */
AI void scratch_begin(struct lb_scratch *s)
{
	s->backend = 0;
	s->service = 0;
}

/* Records a verdict on a packet that has not been changed (CALL_EVENT, which returns the verdict). */
AI void verdict_event(lb_ctx *ctx, u32 reason, int action)
{
	struct lb_scratch *s;

	if (!EVENTS || !event_is_kept(reason))
		return;
	s = scratch();
	if (!s)
		return;
	s->event_reason = reason;
	s->event_verdict = action;
	lb_call(ctx, FAMILY_CALL(CALL_EVENT));
}

/* Counts a verdict under its reason and returns it. */
AI int verdict(lb_ctx *ctx, u32 reason, int action)
{
	count(reason, CTX_LEN(ctx));
	verdict_event(ctx, reason, action);
	return action;
}

/* Answers the sender (CALL_ANSWER). `s->pk` is the untranslated packet. */
AI int answer(lb_ctx *ctx, struct lb_scratch *s, u32 reason, u32 mtu)
{
	TRACE(ANSWER, reason, mtu);
	s->answer = reason;
	s->answer_mtu = mtu;
	lb_call(ctx, FAMILY_CALL(CALL_ANSWER));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
