/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the value word of a flow entry: backend, state, forwarding mode. It is read and replaced as one word. Only the
 * headers of the flow table (ct_*.h, snat*.h) use its bits, V_* of maps/flow_layout.py; others use the functions.
 *
 * The forward word is the SNAT port in network order if the flow has one. Else its low byte is 0 (the configuration allows no SNAT port
 * below 256), and its high byte is FORWARD_LOCAL or another ForwardMode. A flow of FORWARD_SNAT without a port waits for one.
 */
#pragma once
#include "forward.h"
#include "parse.h"

#define GEN_MASK V_GENERATION_MASK /* the same bits, the lowest, in all words that have a generation */
#define GEN_BITS V_GENERATION_BITS
#define V_BACKEND(v) FIELD(V_BACKEND, v)
#define V_BACKEND_GEN(v) FIELD(V_BACKEND_GENERATION, v)
#define V_BACKEND_GEN_NONE ((u64)BACKEND_GENERATION_TURNED << V_BACKEND_GENERATION_SHIFT)
#define V_SNAT_MASK ((u64)FORWARD_PORT_BITS << V_FORWARD_SHIFT) /* not all 0: there is a SNAT port */
#define V_MODE_SHIFT (V_FORWARD_SHIFT + FORWARD_MODE_SHIFT)
#define V_STATE(v) FIELD(V_STATE, v)
#define V_FIN_CLIENT IN_FIELD(V_FIN, FIN_CLIENT)
#define V_FIN_BACKEND IN_FIELD(V_FIN, FIN_BACKEND)
#define V_LASTED V_FIN_CLIENT /* UDP, which has no FIN: the conversation continued after its first reply */
#define V_SNAT_SLOT_GEN(v) FIELD(V_SNAT_GENERATION, v)

_Static_assert(GEN_MASK == OWNER_GENERATION_MASK && GEN_MASK == VIP_GENERATION_MASK && GEN_MASK == (1ULL << GEN_BITS) - 1, "generations");

/* Is the flow not established yet? */
AI bool value_is_opening(u64 v)
{
	return V_STATE(v) == CT_NEW || V_STATE(v) == CT_MID;
}

/* Has the flow ended? */
AI bool value_is_closing(u64 v)
{
	return V_STATE(v) == CT_CLOSING;
}

AI u64 value_with_state(u64 v, u64 state)
{
	return (v & ~V_STATE_MASK) | state << V_STATE_SHIFT;
}

/* Have both sides of a TCP flow sent FIN? */
AI bool value_is_finished(u64 v)
{
	return (v & (V_FIN_CLIENT | V_FIN_BACKEND)) == (V_FIN_CLIENT | V_FIN_BACKEND);
}

/* Closes a TCP flow finally: no segment establishes it again. */
AI u64 value_finished(u64 v)
{
	return value_with_state(v, CT_CLOSING) | V_FIN_CLIENT | V_FIN_BACKEND;
}

/* Returns the value of a flow without a SNAT port. */
AI u64 value_make(u64 backend, u64 backend_gen, u64 state, u64 forward)
{
	return backend << V_BACKEND_SHIFT | backend_gen << V_BACKEND_GENERATION_SHIFT | forward << V_MODE_SHIFT | state << V_STATE_SHIFT;
}

/* Returns the result of snat_take(): a port (network order) and the generation its slot has now. */
AI u64 value_snat_part(u16 port, u64 slot_gen)
{
	return (u64)port << V_FORWARD_SHIFT | IN_FIELD(V_SNAT_GENERATION, slot_gen);
}

/* Gives a flow its SNAT port. */
AI u64 value_with_snat(u64 v, u64 snat_part)
{
	return (v & ~(V_FORWARD_MASK | V_SNAT_GENERATION_MASK)) | snat_part;
}

AI u64 value_backend(u64 v)
{
	return V_BACKEND(v);
}

/* The client uses its port again: a new connection in the old entry. */
AI u64 value_reopened(u64 v)
{
	return v & ~(V_STATE_MASK | V_FIN_CLIENT | V_FIN_BACKEND);
}

/* Does the flow have a SNAT port? */
AI bool value_is_snat(u64 v)
{
	return v & V_SNAT_MASK;
}

/* Returns the SNAT port of a flow that has one, network order. */
AI u16 value_snat_port(u64 v)
{
	return v >> V_FORWARD_SHIFT;
}

/* Returns FORWARD_LOCAL or another ForwardMode. */
AI u64 value_forward(u64 v)
{
	return value_is_snat(v) ? FORWARD_SNAT : v >> V_MODE_SHIFT & 0xff;
}

/* Returns the forward word: the SNAT port, network order, or 0 for FORWARD_LOCAL. */
AI u16 value_forward_word(u64 v)
{
	return v >> V_FORWARD_SHIFT;
}

/* Returns 0 for FORWARD_LOCAL, else some bit. No branch. */
AI u64 value_not_local(u64 v)
{
	return v & V_FORWARD_MASK;
}

/* Do two flows of one client refer to the same SNAT slot? */
AI bool value_shares_slot(u64 a, u64 b)
{
	return !((a ^ b) & (V_FORWARD_MASK | V_BACKEND_MASK));
}

/* Are replies to two flows of one client port the same packets: both of FORWARD_LOCAL, to one backend? */
AI bool value_shares_reply(u64 a, u64 b)
{
	return !(value_not_local(a) | value_not_local(b) | (V_BACKEND(a) ^ V_BACKEND(b)));
}

/* Returns `v` with this slot generation, of which it keeps two bits. */
AI u64 value_with_slot_gen(u64 v, u64 slot_gen)
{
	return (v & ~V_SNAT_GENERATION_MASK) | IN_FIELD(V_SNAT_GENERATION, slot_gen);
}

/* Takes the backend from a flow that has one: no backend has the generation that is left, so the flow's next packet finds the backend
 * gone. */
AI u64 value_without_backend(u64 v)
{
	return v ^ V_BACKEND_GEN_NONE;
}

/* Gives a flow the backend id 0 (no backend): no reply is the flow's from now on. */
AI u64 value_of_no_backend(u64 v)
{
	return v & ~V_BACKEND_MASK;
}

/* A flow that `lbagent flow delete --reset` has ended: it has neither backend nor SNAT port, and a generation that the path record of
 * id 0, which is never written, does not follow (value_knows_path()). */
AI u64 value_of_reset(u64 v)
{
	return (v & (GEN_MASK | V_STATE_MASK | V_FIN_CLIENT | V_FIN_BACKEND)) |
	       (u64)(BACKEND_GENERATION_TURNED / 2) << V_BACKEND_GENERATION_SHIFT;
}

/* The backend refused a flow before it was established, or it lost its port: a flow of CT_NEW with the backend's FIN, which no segment
 * gives such a flow, is not live. */
AI u64 value_refused(u64 v)
{
	return value_with_state(v, CT_NEW) | V_FIN_BACKEND;
}

/* Is the flow live? One that has ended is not, nor one that its backend refused, nor one without a backend. No branches: the verifier
 * counts paths. */
AI u64 value_is_live(u64 v)
{
	u64 state = V_STATE(v), refused, none = V_BACKEND(v) - 1, ended = (state ^ CT_CLOSING) - 1;

	OPAQUE(state);
	refused = (state - 1) & 0 - (v >> __builtin_ctzll(V_FIN_BACKEND) & 1);
	OPAQUE(refused);
	return ((none | ended | refused) >> 63) ^ 1;
}

/* Takes the SNAT port from a flow: its entry may be evicted at any time (CT_NEW), and no backend has its generation, so its next
 * packet selects a backend again. */
AI u64 value_without_snat(u64 v)
{
	return value_without_backend(value_refused(v & ~V_FORWARD_MASK));
}

/* The flow keeps its backend, but no longer the client's address: until its next packet finds a port for it, no reply is the flow's. */
AI u64 value_awaiting_snat(u64 v)
{
	return (v & ~V_FORWARD_MASK) | (u64)FORWARD_SNAT << V_MODE_SHIFT;
}

/* Does the flow wait for a SNAT port? */
AI bool value_awaits_snat(u64 v)
{
	return value_forward_word(v) == FORWARD_SNAT << FORWARD_MODE_SHIFT;
}

/* What stays the same as long as the flow keeps its entry, its backend and its port. */
AI u64 value_identity(u64 v)
{
	return v & ~(V_STATE_MASK | V_FIN_CLIENT | V_FIN_BACKEND);
}

/* The word of an entry's incarnation `gen` with the contents of another one. */
AI u64 value_in_entry(u64 v, u64 gen)
{
	return (v & ~GEN_MASK) | (gen & GEN_MASK);
}

/* Does the flow keep its SNAT port under all conditions? An established one does. For UDP, where one forged datagram gets a reply,
 * only one whose conversation continued. `l4`: its protocol. */
AI bool value_keeps_port(u64 v, u64 l4)
{
	return V_STATE(v) == CT_ESTABLISHED && (l4 != L4_UDP || v & V_LASTED);
}

/* Returns 0 if the backend is still the one the flow was given, else up to 9 bits. `meta`: its path record's. */
AI u64 value_backend_differs(u64 v, u64 meta)
{
	return ((meta >> 16 ^ V_BACKEND_GEN(v)) & 0x1ff) ^ PATH_LIVE << 8;
}

AI bool value_is_served(u64 v, u64 meta)
{
	return !value_backend_differs(v, meta);
}

/* Is the path record still that of the flow's backend? Also true if that backend is gone (the record of a removed backend has the next
 * generation, and is not live) or was taken from the flow. */
AI bool value_knows_path(u64 v, u64 meta)
{
	u64 ahead = (META_GEN(meta) - V_BACKEND_GEN(v)) & (BACKEND_GENERATION_TURNED - 1);

	return ahead <= !META_IS(meta, PATH_LIVE);
}

/* Returns a time-out in ticks, 16 bits. That of an established flow depends on its protocol; SCTP, which has connections, too, has
 * that of TCP. */
AI u64 ct_timeout(u64 state, u64 l4)
{
	if (state == CT_CLOSING)
		return CFG(timeout_closing);
	if (state != CT_ESTABLISHED)
		return CFG(timeout_new);
	switch (l4) {
	case L4_UDP:
		return CFG(timeout_udp);
	case L4_TCP:
	case L4_SCTP:
	default:
		return CFG(timeout_tcp);
	}
}

/* The same as tables with 16 bits per entry: established flows by protocol, others by state. */
#define TIMEOUTS_EST (CFG(timeout_tcp) | CFG(timeout_udp) << 16 | CFG(timeout_tcp) << 32)
#define TIMEOUTS_OTHER (CFG(timeout_new) | CFG(timeout_closing) << 32 | CFG(timeout_new) << 48)

/* Returns the time-outs of a protocol's four states, 16 bits each, without a branch. `est`, `other`: TIMEOUTS_EST, TIMEOUTS_OTHER. */
AI u64 ct_timeouts(u64 l4, u64 est, u64 other)
{
	return other | (est >> (l4 << 4) & 0xffff) << 16;
}
