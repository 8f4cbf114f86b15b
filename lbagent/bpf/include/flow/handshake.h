/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what the flows tell about backends: how long one of --handshake-sample TCP handshakes takes from the client's SYN
 * to the backend's SYN-ACK, and how it ends. Only SYN, SYN-ACK and RST come here, all of the slow path. A handshake that waits is in
 * lb_handshake, at a place that its flow's key selects; results are added to the backend's record in lb_tcp. The agent counts those
 * that got no answer (targets/bpf/handshake_watch.py). Also: new flows by service (lb_new_flows).
 */
#pragma once
#include "ct_state.h"

#define HANDSHAKE_KEPT_NS (2 * HANDSHAKE_LOST_NS) /* the agent removes a lost one earlier, unless it is gone */
#define NS_PER_US 1000

/* A constant for the verifier, which removes the code under it with --handshake-sample 0. */
#define HANDSHAKES_ARE_TIMED (!LB_IS_DRY && CFG(handshake_below) != 0)

/* Is the handshake of this flow timed? `number`: its hash (ct_key_make()), which is of the client alone: both directions have it. */
AI bool handshake_is_timed(u64 number)
{
	return (u32)number < CFG(handshake_below);
}

AI struct lb_handshake *handshake_at(u64 number)
{
	return (struct lb_handshake *)MAPVAL(lb_handshake) + (number >> 48 & (HANDSHAKES - 1));
}

AI struct lb_tcp *handshake_record(u64 backend)
{
	return (struct lb_tcp *)MAPVAL(lb_tcp) + (backend & CFG(path_mask));
}

/* What the record has of a handshake beside its flow's number: backend, service, and of the client's address a hash. */
AI u64 handshake_owner(const lb_addr *client, u64 service, u64 backend)
{
	u64 sum = addr_sum(client) * 0x9E3779B97F4A7C15ULL;

	sum >>= HANDSHAKE_CLIENT_SHIFT + 2; /* 26 bits: below HANDSHAKE_REPEATED */
	return backend | (service & (SERVICE_IDS - 1)) << HANDSHAKE_SERVICE_SHIFT | sum << HANDSHAKE_CLIENT_SHIFT;
}

/* A SYN made a flow to this backend. An older handshake at this place stays, so that each that begins also ends. */
AI void handshake_begin(u64 number, const lb_addr *client, u64 service, u64 backend)
{
	struct lb_handshake *h;
	u64 began;

	if (!HANDSHAKES_ARE_TIMED || !handshake_is_timed(number))
		return;
	h = handshake_at(number);
	began = RD64(&h->began);
	if (began && RD64(&h->number) != number && coarse_ns() < began + HANDSHAKE_KEPT_NS)
		return;
	WR64(&h->began, 0);
	WR64(&h->number, number);
	WR64(&h->owner, handshake_owner(client, service, backend));
	WR64(&h->began, monotonic_ns());
}

/* When the handshake of this flow with this backend began; 0: it is not timed, or has ended. */
AI u64 handshake_began(const struct lb_handshake *h, u64 number, u64 backend)
{
	return RD64(&h->number) == number && (RD64(&h->owner) & HANDSHAKE_BACKEND_MASK) == backend ? RD64(&h->began) : 0;
}

/* The client's SYN came again: it, or its answer, was lost. */
AI void handshake_again(u64 number, u64 backend)
{
	struct lb_handshake *h = handshake_at(number);

	if (!HANDSHAKES_ARE_TIMED || !handshake_is_timed(number) || !handshake_began(h, number, backend))
		return;
	__sync_fetch_and_add(&handshake_record(backend)->again, 1);
	WR64(&h->owner, RD64(&h->owner) | HANDSHAKE_REPEATED);
}

/* The bucket of a time: number n has those up to 2^(6 + n) us, so it is the number of bits of what is left of (us - 1) without the six
 * lowest. No branches: the verifier counts ways. */
AI u64 handshake_bucket(u64 us)
{
	u64 left = min64((us - 1 + SIGN(us - 1)) >> HANDSHAKE_FIRST_BOUND, (1ULL << HANDSHAKE_BOUNDS) - 1), bits = 0;

	OPAQUE(left); /* the compiler knows how large it can be, and would compare it */
	_Pragma("clang loop unroll(full)")
	for (u64 half = HANDSHAKE_BOUNDS / 2; half; half /= 2) {
		u64 skip = SIGN((1ULL << half) - 1 - left) * half;

		bits += skip;
		left >>= skip;
	}
	return bits + (left & 1);
}

_Static_assert(HANDSHAKE_BOUNDS == 16, "halves");

AI void handshake_done(struct lb_tcp *r, u64 us)
{
	u32 *bucket = (u32 *)((u8 *)r + __builtin_offsetof(struct lb_tcp, le_0)) + (handshake_bucket(us) & (2 * HANDSHAKE_BOUNDS - 1));

	__sync_fetch_and_add(bucket, 1);
	__sync_fetch_and_add(&r->sum_us, us);
	WR32(&r->failing, 0);
}

/* A segment of the backend: its SYN-ACK or RST ends the handshake. */
AI void handshake_end(u64 number, const struct lb_pkt *pk, u64 backend)
{
	u64 began, refuses = pk->tcp_flags & TCP_RST;
	struct lb_handshake *h;
	struct lb_tcp *r;

	if (!HANDSHAKES_ARE_TIMED || !(refuses || (pk->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK)))
		return;
	if (!handshake_is_timed(number))
		return;
	h = handshake_at(number);
	began = handshake_began(h, number, backend);
	if (!began || CAS(&h->began, began, 0) != began)
		return;
	r = handshake_record(backend);
	if (!refuses) {
		handshake_done(r, (monotonic_ns() - began) / NS_PER_US);
		return;
	}
	__sync_fetch_and_add(&r->refused, 1);
	__sync_fetch_and_add(&r->failing, 1);
}

/* Counts a new flow of a service, in this CPU's stripe. */
AI void count_new_flow(u64 service)
{
	u64 cpu = cpu_number(), *row;

	if (LB_IS_DRY)
		return;
	if (UNLIKELY(cpu >= CFG(counter_stripes)))
		cpu = 0;
	row = (u64 *)MAPVAL(lb_new_flows) + cpu * SERVICE_IDS;
	OPAQUE(row); /* two additions: Linux 6.1 loses the bounds of one index of both */
	row[service & (SERVICE_IDS - 1)]++;
}
