/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the writing of events: a record for each new flow that is forwarded, and for refusals, drops and answers up to
 * --event-rate. While a reader requests all packets, the agent puts programs in force that were compiled with LB_SAMPLING
 * (SAMPLES). They record also every packet of the slow path, to which the entry program passes one in so many. maps/event_layout.py
 * has the records and how a reader, which maps them into memory, finds the valid ones.
 *
 * A record has the frame's first bytes as the frame arrived, so it is filled before the frame is translated; never payload. With
 * --events 0 the verifier removes all code of this file. A dry program has none.
 */
#pragma once
#include "parse.h"
#include "rate.h"

#define EVENTS (!LB_IS_DRY && CFG(event_rings) != 0)
#ifdef LB_SAMPLING
#define SAMPLES EVENTS
#else
#define SAMPLES 0 /* a setting would cost each packet the instruction that loads it */
#endif
#define FRAMES_AFTER (SAMPLES && CFG(frames_after) != 0) /* each record has a second one: the frame as it leaves */
#define EVENT_WORDS (EVENT_BYTES / 8)
#define EVENT_FRAME_WORD (EVENT_FRAME_AT / 8)
#define EVENT_IDS(backend, service, snat_port) ((u64)(backend) | (u64)(service) << EVENT_SERVICE_SHIFT | (u64)(snat_port) << EVENT_SNAT_PORT_SHIFT)
#define EVENT_BLOCK 16 /* bytes of the frame that are copied at a time */
#define EVENT_MIN (ETH_HLEN + IP_HLEN) /* bytes of the shortest frame that is parsed */
#define EVENT_WHOLE (EVENT_MIN / EVENT_BLOCK * EVENT_BLOCK) /* bytes of blocks that every frame fills */

/* Returns the head of the ring of this CPU, which no other CPU writes, and which no packet interrupts; NULL: it has none. It reads the
 * CPU itself: where the caller compares it, too, with the same limit, Linux 6.1 loses its bounds. */
AI u64 *event_ring(void)
{
	u64 cpu = cpu_number();

	if (UNLIKELY(cpu >= CFG(event_rings)))
		return 0;
	return (u64 *)((u8 *)MAPVAL(lb_events) + cpu * CFG(event_ring_bytes));
}

/* Returns the slot of the next record. */
AI u64 *event_slot(u64 *ring)
{
	u64 slot = ring[EVENT_HEAD_WRITTEN] & CFG(event_mask);

	return ring + EVENT_WORDS + slot * EVENT_WORDS;
}

/* Returns the bytes up to the end of the L4 header. A header of a protocol that is not balanced is not copied, as its end is unknown. */
AI u64 event_headers(const struct lb_pkt *pk, const u8 *data, const u8 *end)
{
	const u8 *l4 = data + L4_OFF(pk);
	u64 size = 0;

	if (pk->flags & PKT_LATER)
		return L4_OFF(pk);
	if (pk->proto == PROTO_TCP) {
		if (l4 + TCP_HLEN > end)
			return L4_OFF(pk);
		size = TCP_HEADER_BYTES(l4);
		if (size < TCP_HLEN)
			size = TCP_HLEN;
	} else if (pk->proto == PROTO_UDP || pk->proto == PROTO_ICMP_FAMILY) {
		size = UDP_HLEN;
	} else if (pk->proto == PROTO_SCTP) {
		size = SCTP_MIN_HLEN; /* the first chunk's kind, none of its contents */
	}
	return L4_OFF(pk) + size;
}

AI void event_copy(u64 *to, const u8 *from)
{
	to[0] = *(u64 *)from;
	to[1] = *(u64 *)(from + 8);
}

/* Copies the headers into a record, in blocks; the last block overlaps the one before it. Returns the number of bytes. */
AI u64 event_copy_headers(u64 *to, const struct lb_pkt *pk, const u8 *data, const u8 *end)
{
	u64 size = event_headers(pk, data, end), done = 0;

	if (size > EVENT_FRAME_BYTES)
		size = EVENT_FRAME_BYTES;
	if (size < EVENT_MIN || data + EVENT_WHOLE > end)
		return 0;
#pragma clang loop unroll(full)
	for (done = 0; done < EVENT_WHOLE; done += EVENT_BLOCK)
		event_copy(to + done / 8, data + done);
#pragma clang loop unroll(full)
	for (done = EVENT_WHOLE; done < EVENT_FRAME_BYTES; done += EVENT_BLOCK) {
		if (size < done + EVENT_BLOCK || data + done + EVENT_BLOCK > end)
			break;
		event_copy(to + done / 8, data + done);
	}
	size -= EVENT_BLOCK;
	OPAQUE(size);
	size &= EVENT_BYTES - 1; /* Linux 6.1 follows a way on which its bounds exclude each other, and then forgets them */
	if (size > EVENT_FRAME_BYTES - EVENT_BLOCK)
		return done;
	data += size;
	if (data + EVENT_BLOCK > end)
		return done;
	event_copy((u64 *)((u8 *)to + size), data);
	return size + EVENT_BLOCK;
}

/* Starts the cache misses of the next record, so that they overlap with others. */
AI void event_prefetch(void)
{
	u64 *ring = event_ring(), *to;

	if (!ring)
		return;
	to = event_slot(ring);
	RD64(to);
	RD64(to + EVENT_WORDS / 2);
}

_Static_assert(EVENT_HOOK_TC_EGRESS == EVENT_HOOK_TC_INGRESS + 1 && EVENT_HOOK_TC_AFTER_XDP == EVENT_HOOK_TC_INGRESS + 2, "tc's hooks");

/* No branch, and no mask that the compiler makes of one: the verifier would follow two paths. */
AI u64 event_hook(const struct lb_pkt *pk)
{
	u64 flags = pk->flags;

	if (!HOOK_HAS_EGRESS)
		return EVENT_HOOK_XDP;
	return EVENT_HOOK_TC_INGRESS + (flags / PKT_EGRESS & 1) + (flags / PKT_HANDED_OVER & 1) * 2;
}

/* Fills the next record, which event_publish() then ends. `ids`: EVENT_IDS(). */
AI void event_fill(lb_ctx *ctx, const struct lb_pkt *pk, u64 *ring, u64 ids)
{
	u64 *to = event_slot(ring), kept;

	MB(); /* the record before it has been counted */
	to[1] = jiffies();
	to[2] = CTX_IFINDEX(ctx) | CTX_LEN(ctx) << EVENT_LENGTH_SHIFT;
	kept = event_copy_headers(to + EVENT_FRAME_WORD, pk, CTX_DATA(ctx), CTX_END(ctx));
	to[3] = ids | kept << EVENT_KEPT_SHIFT | event_hook(pk) << EVENT_HOOK_SHIFT;
}

/* Ends the record that event_fill() began. */
AI void event_publish(u64 *ring, u64 reason)
{
	u64 *to = event_slot(ring), number = ring[EVENT_HEAD_WRITTEN];

	to[2] |= reason << EVENT_REASON_SHIFT;
	to[0] = (number & 0xffffffff) | ring[EVENT_HEAD_GENERATION] << EVENT_GENERATION_SHIFT;
	MB();
	ring[EVENT_HEAD_WRITTEN] = number + 1;
}

/* Records the translated frame behind the record of the frame as it arrived. `device`: by which it leaves, with these MAC addresses
 * (nexthop); 0: the stack has it. */
AI void event_after(lb_ctx *ctx, const struct lb_pkt *pk, u64 *ring, u64 ids, u64 reason, u64 device, u64 macs, u64 rest)
{
	u64 *to = event_slot(ring);

	event_fill(ctx, pk, ring, ids);
	to[2] = (u32)device | to[2] >> EVENT_LENGTH_SHIFT << EVENT_LENGTH_SHIFT;
	to[3] |= 1ULL << EVENT_AFTER_SHIFT;
	if (device) {
		to[EVENT_FRAME_WORD] = macs;
		*(u32 *)(to + EVENT_FRAME_WORD + 1) = rest;
	}
	event_publish(ring, reason);
}

/* Is a packet with this verdict recorded? Not if it belongs to no service, or if tc_after_xdp has it next. */
AI bool event_is_kept(u64 reason)
{
	return reason > REASON_PASS_NOT_SERVICE && reason != REASON_PASS_MTU && reason != REASON_PASS_NEIGHBOR && reason != REASON_PASS_L7;
}

/* Is this packet of the quick path one of those that are recorded? */
AI bool packet_is_sampled(void)
{
	return random32() < CFG(sample_below);
}

/* May a refusal be recorded? */
AI bool event_admitted(u64 *ring)
{
	if (SAMPLES)
		return true;
	if (rate_admits(ring + EVENT_HEAD_BUCKET, CFG(event_rate)))
		return true;
	ring[EVENT_HEAD_LIMITED]++;
	return false;
}
