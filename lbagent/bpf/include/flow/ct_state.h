/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the states of a flow, and how a packet changes them. The rule: a flow is established when its client has proved that
 * it receives the backend's packets, or the backend that it has such a connection. A sender with a forged source cannot establish one,
 * also not by the answers that it causes a backend to send (docs/datapath.md, "States").
 *
 * As long as a flow is opening, the 16 bits of its seen word where the next hop towards the client will be are its handshake word:
 *   bit 15: the backend has answered: a SYN-ACK, or UDP's first reply. Set, the bits are no next hop
 *   bit 14: TCP, not answered: the backend may have a connection of this flow from before the client's SYN
 *   bits 0-13: of TCP the low bits of the number by which the client acknowledges that SYN-ACK; of UDP the tick of the reply
 *
 * SCTP has the states of TCP: the first chunk of a packet counts as flags of TCP (sctp_flags()), the tag of the backend's INIT ACK as the
 * number of its SYN-ACK, by which its client's COOKIE ECHO proves that it has received it.
 *
 * After a RST has ended a TCP flow, two more bits beside the next hop record which side has sent a segment without SYN, FIN and RST since:
 *   bit 12: the client; bit 13: the backend. Both: the connection is alive, and the RST did not belong to it
 */
#pragma once
#include "ct.h"
#include "flow_count.h"

#define UDP_LASTS 2 /* ticks after the first reply; a later datagram shows that a UDP conversation continues */

/* A flow before a packet, changed in place to the flow after it. */
struct ct_step {
	u64 value, word; /* value word, handshake word */
};

/* Does this segment, no RST, establish an opening TCP flow? `number`: the acknowledgement number of a client's segment, the number that
 * acknowledges a backend's SYN. Keeps what proves it later. */
AI bool tcp_establishes(struct ct_step *step, u64 flags, u64 number, bool from_backend)
{
	if (flags & TCP_SYN) {
		if (from_backend && flags & TCP_ACK)
			step->word = HANDSHAKE_ANSWERED | (number & HANDSHAKE_NUMBER);
		return false;
	}
	/* After a client's SYN, a bare ACK may be the answer to a forged SYN: a backend with a half-open connection of this port sends it
	 * (RFC 5961 §4.2). Data or FIN it sends only on a connection. */
	if (from_backend)
		return V_STATE(step->value) == CT_MID || flags & (TCP_PSH | TCP_FIN);
	if (!(step->word & HANDSHAKE_ANSWERED)) /* its SYN-ACK came before these programs */
		step->word = HANDSHAKE_OLDER;
	return step->word & HANDSHAKE_ANSWERED && flags & TCP_ACK && !((step->word ^ number) & HANDSHAKE_NUMBER);
}

/* A client's SYN: it restarts the handshake, except on an established flow. */
AI void tcp_open(struct ct_step *step)
{
	if (V_STATE(step->value) == CT_MID || V_STATE(step->value) == CT_CLOSING) {
		step->value = value_reopened(step->value);
		step->word = HANDSHAKE_OLDER;
	}
}

/* A RST of either side: the flow closes. Anyone can send one with the client's address, so later segments can undo it (tcp_after_rst()). */
AI void tcp_reset(struct ct_step *step)
{
	step->value = value_with_state(step->value, CT_CLOSING);
	step->word &= ~AFTER_RST;
}

/* A segment without SYN, FIN and RST on a flow that a RST has ended. After a real RST, at most one side sends such segments: if both
 * do, the flow is established again. Not if both sides have sent FIN: their last acknowledgements are such segments, too. */
AI void tcp_after_rst(struct ct_step *step, bool from_backend)
{
	u64 both;

	step->word |= from_backend ? AFTER_RST_BACKEND : AFTER_RST_CLIENT;
	both = ((step->word & AFTER_RST) + AFTER_RST_CLIENT) >> 14; /* 1 or 0; without a branch: the verifier counts paths */
	OPAQUE(both);
	step->value ^= both * ((CT_CLOSING ^ CT_ESTABLISHED) << V_STATE_SHIFT);
	step->word &= ~(both * AFTER_RST);
}

AI void tcp_advance(struct ct_step *step, const struct lb_pkt *pk, u64 number, bool from_backend)
{
	u64 flags = pk->tcp_flags;
	bool opening;

	if (LIKELY(!((flags & (TCP_SYN | TCP_FIN | TCP_RST)) | (V_STATE(step->value) ^ CT_ESTABLISHED))))
		return;
	opening = value_is_opening(step->value);
	if (flags & TCP_RST) { /* for a flow that never was established only the backend's counts: ct_refresh() frees its port */
		if (!opening)
			tcp_reset(step);
		else if (from_backend)
			step->value = value_is_snat(step->value) ? value_without_snat(step->value) : value_refused(step->value);
		return;
	}
	if (opening)
		step->value &= ~V_FIN_BACKEND; /* refused before (value_refused()): it opens again */
	if (!from_backend && is_syn(pk)) {
		tcp_open(step);
		return;
	}
	if (flags & TCP_FIN)
		step->value |= from_backend ? V_FIN_BACKEND : V_FIN_CLIENT;
	if (opening && !tcp_establishes(step, flags, number, from_backend))
		return;
	if (opening) {
		step->value = value_with_state(step->value, CT_ESTABLISHED);
		step->word = 0;
	}
	if (value_is_finished(step->value))
		step->value = value_with_state(step->value, CT_CLOSING);
	else if (value_is_closing(step->value) && !(flags & (TCP_SYN | TCP_FIN)))
		tcp_after_rst(step, from_backend);
}

/* A protocol without flags: a reply establishes the flow. It keeps its SNAT port only if the conversation continues. */
AI void udp_advance(struct ct_step *step, u64 now, bool from_backend)
{
	if (V_STATE(step->value) != CT_ESTABLISHED) {
		if (!from_backend)
			return;
		step->value = value_with_state(step->value, CT_ESTABLISHED);
	}
	if (!value_is_snat(step->value) || step->value & V_LASTED)
		return;
	if (!(step->word & HANDSHAKE_ANSWERED)) {
		step->word = HANDSHAKE_ANSWERED | (now & HANDSHAKE_NUMBER);
	} else if (((now - step->word) & HANDSHAKE_NUMBER) >= UDP_LASTS) {
		step->value |= V_LASTED;
		step->word = 0;
	}
}

/* Applies a packet of the client or the backend to the state of a flow. */
AI void ct_advance(struct ct_step *step, const struct lb_pkt *pk, u64 number, u64 now, bool from_backend)
{
	if (pk->proto != PROTO_UDP)
		tcp_advance(step, pk, number, from_backend);
	else
		udp_advance(step, now, from_backend);
}
