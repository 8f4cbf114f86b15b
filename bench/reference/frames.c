/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Programs for real devices in namespaces: generators (run with BPF_F_TEST_XDP_LIVE_FRAMES), bare forwarders as references, a
 * sink, and the two ends of the two-CPU test, which derive the expected packet from a number in the payload. */
#include "packet.h"

struct hop { u8 macs[12]; u32 ifindex; };      /* where `forward` sends */
struct tally {                                 /* all counted with atomics: both CPUs write */
	u64 sent_kept, sent_churn;             /* generator: flows that must be kept, flows that come and go */
	u64 seen_kept, seen_churn;             /* at the backends */
	u64 wrong_backend, moved, renewed;     /* backend not the first one; kept flow with another port; churning flow with one */
	u64 reply_kept, reply_churn;           /* back at the client */
	u64 wrong_reply, late_reply;           /* of a kept flow, to another client; of a flow evicted meanwhile */
	u64 bad_source, forgotten, bad_checksum; /* not from the VIP: of a kept flow; of another one */
	u64 foreign;                           /* no packet of this test */
	u64 kept;                              /* parameter: flows 0 .. kept - 1 must be kept, a power of two */
	u64 churn_mask;                        /* parameter: flows kept .. kept + churn_mask come and go */
};

#define TALLY ((struct tally *)MAPVAL(race_tally))
#define ADD(field) __sync_fetch_and_add(&TALLY->field, 1)
#define NUMBER_AT (L4_AT + 22) /* after the balancing word of a TCP payload */
#define DATA u8 *data = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end

/* Client packets of the plan in the control record, sent by the device at which they are injected. */
int generate(struct xdp_md *ctx)
{
	DATA;
	struct ends t = {};

	if (data + L4_AT + 24 > end)
		return XDP_DROP;
	u16 flags = choose(CONTROL, &t);
	write_packet(data, CONTROL, &t, flags, 0);
	return XDP_TX;
}

inline_fn int numbered(u8 *data, struct control *c, u64 flow, u16 flags)
{
	struct ends t = { .dst = c->dst, .dport = c->dport };

	number(&t, &c->src, flow);
	*(u64 *)(data + NUMBER_AT) = flow;
	write_packet(data, c, &t, flags, (flow & 0xffffffff) + (flow >> 32));
	return XDP_TX;
}

/* The kept flows, one after the other: a SYN, then an ACK each opens them. */
int opening(struct xdp_md *ctx)
{
	DATA;
	struct control *c = CONTROL;

	if (data + NUMBER_AT + 8 > end)
		return XDP_DROP;
	return numbered(data, c, c->seq++ & (TALLY->kept - 1), c->flags);
}

/* One packet in four belongs to a kept flow (ACK), the others are SYNs of a range larger than the table. */
int churn(struct xdp_md *ctx)
{
	DATA;
	struct control *c = CONTROL;

	if (data + NUMBER_AT + 8 > end)
		return XDP_DROP;
	u64 r = c->seq++ * 0x9E3779B97F4A7C15ull;
	r ^= r >> 29;
	r *= 0xBF58476D1CE4E5B9ull;
	r ^= r >> 32;
	if ((r >> 40) & 3) {
		ADD(sent_churn);
		return numbered(data, c, TALLY->kept + (r & TALLY->churn_mask), c->flood_flags);
	}
	ADD(sent_kept);
	return numbered(data, c, r & (TALLY->kept - 1), c->flags);
}

/* The lower bound of a forwarder: the frame is returned by its device. */
int bounce(struct xdp_md *ctx)
{
	DATA;
	u8 mac[6];

	if (data + 14 > end)
		return XDP_DROP;
	__builtin_memcpy(mac, data, 6);
	__builtin_memcpy(data, data + 6, 6);
	__builtin_memcpy(data + 6, mac, 6);
	return XDP_TX;
}

/* The same through a second device. */
int forward(struct xdp_md *ctx)
{
	DATA;
	struct hop *hop = MAPVAL(frame_hop);

	if (data + 14 > end)
		return XDP_DROP;
	__builtin_memcpy(data, hop->macs, 12);
	return redirect(hop->ifindex, 0);
}

int sink(struct xdp_md *ctx)
{
	u32 zero = 0;
	u64 *count = map_lookup(MAPFD(frame_count), &zero);

	if (count)
		*count += 1;
	return XDP_DROP;
}

/* Returns the flow of a packet of the two-CPU test, or -1. */
inline_fn s64 flow_of(u8 *data, u8 *end)
{
	if (data + NUMBER_AT + 8 > end || *(u16 *)(data + 12) != ETHERTYPE)
		return -1;
	if (data[FAMILY == 4 ? 23 : 20] != TCP)
		return -1;
	u64 flow = *(u64 *)(data + NUMBER_AT);
	return flow > TALLY->kept + TALLY->churn_mask ? -1 : (s64)flow;
}

inline_fn void swap_ends(u8 *data)
{
	struct addr src;
	u16 port = *(u16 *)(data + L4_AT);
	u8 mac[6];

	__builtin_memcpy(mac, data, 6);
	__builtin_memcpy(data, data + 6, 6);
	__builtin_memcpy(data + 6, mac, 6);
	for (int i = 0; i < ADDR_WORDS; i++) {
		__typeof__(src.w[0]) *a = (void *)(data + SRC_AT), *b = (void *)(data + DST_AT);
		src.w[i] = a[i];
		a[i] = b[i];
		b[i] = src.w[i];
	}
	*(u16 *)(data + L4_AT) = *(u16 *)(data + L4_AT + 2);
	*(u16 *)(data + L4_AT + 2) = port;
}

/* The backends' end: answers if the backend and the port are those of the flow's first packet. */
int backend_end(struct xdp_md *ctx)
{
	DATA;
	s64 flow = flow_of(data, end);

	if (flow < 0) {
		ADD(foreign);
		return XDP_PASS;
	}
	if (data + NUMBER_AT + 8 > end)
		return XDP_DROP;
	u64 backend = *(u32 *)(data + DST_AT + sizeof(struct addr) - 4);
	u64 got = backend << 32 | (u64)*(u16 *)(data + L4_AT) << 16 | 1;
	u64 *record = (u64 *)(MAPVAL(race_record) + (flow & RECORD_MASK) * 8);
	u64 old = __sync_val_compare_and_swap(record, 0, got);
	u64 kept = (u64)flow < TALLY->kept;
	if (kept)
		ADD(seen_kept);
	else
		ADD(seen_churn);
	if (old && old >> 32 != got >> 32) {
		ADD(wrong_backend);
	} else if (old && old != got) {
		if (kept)
			ADD(moved);
		else
			ADD(renewed);
		*record = got;
	}
	u16 flags = *(u16 *)(data + L4_AT + 12), answer = flags | HTONS(TCP_ACK);
	u16 *check = (u16 *)(data + L4_AT + 16);
	*check = ~fold((u64)(u16)~*check + (u16)~flags + answer);
	*(u16 *)(data + L4_AT + 12) = answer;
	swap_ends(data);
	return XDP_TX;
}

inline_fn int checksum_good(u8 *data)
{
	u64 sum = addr_sum((struct addr *)(data + SRC_AT)) + addr_sum((struct addr *)(data + DST_AT)) + HTONS(TCP) + HTONS(30);

#pragma unroll
	for (int i = 0; i < 15; i++)
		sum += *(u16 *)(data + L4_AT + 2 * i);
	return fold(sum) == 0xffff;
}

/* The clients' end: checks that the reply comes from the VIP, to the right client, with a correct checksum. */
int client_end(struct xdp_md *ctx)
{
	DATA;
	s64 flow = flow_of(data, end);
	struct control *c = CONTROL;
	struct ends t = {};

	if (flow < 0) {
		ADD(foreign);
		return XDP_PASS;
	}
	if (data + NUMBER_AT + 8 > end)
		return XDP_DROP;
	number(&t, &c->src, flow);
	struct addr *src = (struct addr *)(data + SRC_AT), *dst = (struct addr *)(data + DST_AT);
	u64 kept = (u64)flow < TALLY->kept;
	if (src->w[ADDR_WORDS - 1] != c->dst.w[ADDR_WORDS - 1] || *(u16 *)(data + L4_AT) != c->dport) {
		if (kept)
			ADD(bad_source);
		else
			ADD(forgotten);
	}
	if (dst->w[ADDR_WORDS - 1] != t.src.w[ADDR_WORDS - 1] || *(u16 *)(data + L4_AT + 2) != t.sport) {
		if (kept)
			ADD(wrong_reply);
		else
			ADD(late_reply);
	} else if (kept) {
		ADD(reply_kept);
	} else {
		ADD(reply_churn);
	}
	if (!checksum_good(data))
		ADD(bad_checksum);
	return XDP_DROP;
}
