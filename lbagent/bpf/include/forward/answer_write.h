/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains how a packet becomes its own answer: it is resized, and headers and checksums are written as for a new packet.
 * After ctx_resize() all packet pointers are void. With HOOK_KERNEL_CSUM the device may complete a checksum of the packet
 * (CHECKSUM_PARTIAL), and no helper ends that: the written sum makes the completed checksum valid.
 */
#pragma once
#include "nat.h"
#include "scratch.h"

#if LB_FAMILY == 4
#define ADDRS_AT 12
#define QUOTE_MAX 544 /* bytes, whole words: the error stays within 576 (RFC 1812 §4.3.2.3) */
#define ICMP_PORT_UNREACHABLE 0x0303 /* type, code */
#define ICMP_TOO_BIG 0x0304
#define ICMP_TIME_EXCEEDED 0x0b00
#else
#define ADDRS_AT 8
#define QUOTE_MAX 1232 /* bytes: the error stays within 1280 (RFC 4443 §2.4 c) */
#define ICMP_PORT_UNREACHABLE 0x0104
#define ICMP_TOO_BIG 0x0200
#define ICMP_TIME_EXCEEDED 0x0300
#endif
#define L2_COPY 24     /* bytes: Ethernet and two VLAN tags, rounded up to whole words */
#define ANSWER_HOPS 64 /* TTL of an answer */

/* Values saved while the packet is reshaped. */
struct lb_answer {
	u32 l2[L2_COPY / 4];
	union {
		struct {
			u32 seq, ack; /* of the RST, network order */
			u32 flags;    /* of the RST */
		};
		struct {
			u32 sctp_tag;   /* of the ABORT, as loaded */
			u32 sctp_chunk; /* the header of its chunk, as it lies in memory */
		};
	};
};

#define SUM_STEP 16 /* bytes */

/* Sum of the `len` bytes at offset `at` of the frame, at least 8 and no more than `max` (a constant). After the steps the packet is
 * loaded again: the verifier follows the rest once, not once for each number of steps. */
AI u64 sum_bytes(lb_ctx *ctx, u64 at, u64 len, const u64 max)
{
	u8 *p = CTX_DATA(ctx) + at, *end = CTX_END(ctx), *word;
	u64 sum = 0, left = len, last;

	NO_UNROLL
	for (u64 i = 0; i < max / SUM_STEP; i++) {
		if (left < SUM_STEP || p + SUM_STEP > end)
			break;
		sum += (u64)*(u32 *)p + *(u32 *)(p + 4) + *(u32 *)(p + 8) + *(u32 *)(p + 12);
		p += SUM_STEP;
		left -= SUM_STEP;
		OPAQUE(left); /* or the compiler counts the steps before the loop, and Linux 6.1 does not see its end */
	}
	FENCE(ctx);
	p = CTX_DATA(ctx) + at;
	end = CTX_END(ctx);
	word = p + (len & 0x7f0);
	if (len & 8 && word + 8 <= end)
		sum += (u64)*(u32 *)word + *(u32 *)(word + 4);
	p += (len - 8) & 0x7ff;
	if (p + 8 > end)
		return sum;
	last = *(u64 *)p >> 8 >> (7 - (len & 7)) * 8; /* of the last 8 bytes those that are no whole word */
	return sum + (last & 0xffffffff) + (last >> 32);
}

/* Write the Ethernet header back with the MAC addresses swapped, VLAN tags as they were. */
AI void answer_write_l2(u8 *data, const struct lb_answer *a)
{
	u32 *words = (u32 *)data;

	words[0] = a->l2[1] >> 16 | a->l2[2] << 16;
	words[1] = a->l2[2] >> 16 | a->l2[0] << 16;
	words[2] = a->l2[0] >> 16 | a->l2[1] << 16;
	for (u64 i = 3; i < L2_COPY / 4; i++)
		words[i] = a->l2[i];
}

/* Write the IP header of `payload` bytes from the VIP to the client; return the pseudo header's sum. */
AI u64 answer_write_ip(u8 *ip, const struct lb_pkt *pk, u64 payload, u64 proto)
{
	u64 addresses = addr_sum(&pk->saddr) + addr_sum(&pk->daddr);

	addr_store(ip + ADDRS_AT, &pk->daddr);
	addr_store(ip + ADDRS_AT + sizeof(lb_addr), &pk->saddr);
#if LB_FAMILY == 4
	/* errors carry TOS 0xc0 (internetwork control) as routers set it; DF and no identification (RFC 6864) */
	u32 first = HTONL(0x45000000 | (proto == PROTO_ICMP ? 0xc00000 : 0) | (IP_HLEN + payload));
	u32 third = HTONL(ANSWER_HOPS << 24 | proto << 16);

	*(u32 *)ip = first;
	*(u32 *)(ip + IP4_ID) = HTONL(0x4000);
	*(u32 *)(ip + IP4_TTL) = third;
	*(u16 *)(ip + IP4_CSUM) = (u16)~csum_fold(addresses + first + HTONL(0x4000) + third);
#else
	*(u32 *)ip = HTONL(0x60000000);
	*(u32 *)(ip + IP6_PAYLOAD_LEN) = HTONL(payload << 16 | proto << 8 | ANSWER_HOPS);
#endif
	return addresses + HTONS(payload) + HTONS(proto);
}

/* The packet becomes a RST; true when it may be sent. */
AI bool answer_rst(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_answer *a)
{
	u64 l3 = L3_OFF(pk), at = l3 + IP_HLEN;

	if (!ctx_resize(ctx, at + TCP_HLEN, 0))
		return false;
	u8 *data = CTX_DATA(ctx), *ip = data + l3, *tcp;

	OPAQUE(ip); /* one base for both headers, or the verifier does not see that one check covers both */
	tcp = ip + IP_HLEN;
	if (data + L2_COPY > CTX_END(ctx) || tcp + TCP_HLEN > CTX_END(ctx))
		return false;
	answer_write_l2(data, a);
	u64 pseudo = answer_write_ip(ip, pk, TCP_HLEN, PROTO_TCP);
	u32 flags = HTONL(0x50000000 | a->flags << 16); /* 20 bytes, no window */

	*(u16 *)(tcp + L4_SPORT) = pk->dport;
	*(u16 *)(tcp + L4_DPORT) = pk->sport;
	*(u32 *)(tcp + TCP_SEQ) = a->seq;
	*(u32 *)(tcp + TCP_ACK_SEQ) = a->ack;
	*(u32 *)(tcp + TCP_DATA_OFFSET) = flags;
	*(u32 *)(tcp + TCP_CSUM) = 0;
	u16 sum = (u16)~csum_fold(pseudo + pk->sport + pk->dport + a->seq + a->ack + flags);
	if (HOOK_KERNEL_CSUM) {
		if (ctx_csum_partial(ctx, at + TCP_CSUM))
			sum = (u16)csum_fold(pseudo); /* the device adds the rest */
		tcp = CTX_DATA(ctx) + at;
		if (tcp + TCP_HLEN > CTX_END(ctx))
			return false;
	}
	*(u16 *)(tcp + TCP_CSUM) = sum;
	return true;
}

/* The packet becomes an ABORT; true when it may be sent. */
AI bool answer_abort(lb_ctx *ctx, const struct lb_pkt *pk, const struct lb_answer *a)
{
	u64 l3 = L3_OFF(pk), at = l3 + IP_HLEN, crc = CSUM_ONES;

	if (!ctx_resize(ctx, at + SCTP_MIN_HLEN, 0))
		return false;
	u8 *data = CTX_DATA(ctx), *ip = data + l3, *sctp;

	OPAQUE(ip); /* one base for both headers, or the verifier does not see that one check covers both */
	sctp = ip + IP_HLEN;
	if (data + L2_COPY > CTX_END(ctx) || sctp + SCTP_MIN_HLEN > CTX_END(ctx))
		return false;
	answer_write_l2(data, a);
	answer_write_ip(ip, pk, SCTP_MIN_HLEN, PROTO_SCTP);
	*(u32 *)(sctp + L4_SPORT) = nat_port_word(pk->dport, pk->sport);
	*(u32 *)(sctp + SCTP_TAG) = a->sctp_tag;
	*(u32 *)(sctp + SCTP_CSUM) = 0;
	*(u32 *)(sctp + SCTP_HLEN) = a->sctp_chunk;
	crc = crc32c_word(crc, nat_port_word(pk->dport, pk->sport));
	crc = crc32c_word(crc, a->sctp_tag);
	crc = crc32c_word(crc, 0);
	crc = crc32c_word(crc, a->sctp_chunk) ^ CSUM_ONES;
	if (HOOK_KERNEL_CSUM) {
		if (ctx_csum_partial(ctx, at + SCTP_CSUM))
			crc = 0; /* the device writes the whole */
		sctp = CTX_DATA(ctx) + at;
		if (sctp + SCTP_MIN_HLEN > CTX_END(ctx))
			return false;
	}
	*(u32 *)(sctp + SCTP_CSUM) = crc;
	return true;
}

/* Write the ICMP header of the error; return the sum that its checksum must cover, without the quoted packet. */
AI u64 answer_write_icmp(u8 *icmp, u64 pseudo, u64 reason, u64 mtu)
{
	u64 what = reason == REASON_ANSWER_TOO_BIG ? ICMP_TOO_BIG : reason == REASON_ANSWER_TTL ? ICMP_TIME_EXCEEDED : ICMP_PORT_UNREACHABLE;
	u32 rest = reason == REASON_ANSWER_TOO_BIG ? HTONL(mtu) : 0;

	*(u32 *)icmp = HTONS(what);
	*(u32 *)(icmp + ICMP_REST) = rest;
	return (LB_FAMILY == 6 ? pseudo : 0) + HTONS(what) + rest;
}

/* Write the checksum of an ICMP error at offset `at`; `sum` covers its header. A device that completes checksums also does so for
 * the quoted transport header: then the error's own checksum must cover the completed one. */
AI bool answer_icmp_csum(lb_ctx *ctx, const struct lb_pkt *pk, u64 at, u64 quoted, u64 sum)
{
	u64 quote = at + ICMP_HLEN, head = (L4_OFF(pk) - L3_OFF(pk)) & L4_MASK;

	if (!HOOK_KERNEL_CSUM) {
		sum += sum_bytes(ctx, quote, quoted, QUOTE_MAX);
	} else {
		u64 transport = sum_bytes(ctx, quote + head, quoted - head, QUOTE_MAX);

		sum += transport + sum_bytes(ctx, quote, head, L4_MASK + 1);
		if (ctx_csum_partial(ctx, at + ICMP_CSUM)) {
			u8 *field = CTX_DATA(ctx) + quote + head + l4_csum_at(l4_of(pk->proto));

			if (field + 2 <= CTX_END(ctx))
				sum += (u16)~csum_fold(transport) + (u64)(u16)~*(u16 *)field;
		}
	}
	u8 *icmp = CTX_DATA(ctx) + at;

	if (icmp + ICMP_HLEN > CTX_END(ctx))
		return false;
	*(u16 *)(icmp + ICMP_CSUM) = (u16)~csum_fold(sum);
	return true;
}

/* The packet becomes an ICMP error that quotes its beginning; true when it may be sent. */
AI bool answer_icmp(lb_ctx *ctx, const struct lb_scratch *s, const struct lb_answer *a)
{
	const struct lb_pkt *pk = &s->pk;
	u64 l3 = L3_OFF(pk), at = l3 + IP_HLEN, quoted = min64(pk->l3_len, QUOTE_MAX);

	if (l3 + quoted > CTX_LEN(ctx) || L4_OFF(pk) + UDP_HLEN > l3 + quoted)
		return false;
	if (!ctx_resize(ctx, l3 + quoted, IP_HLEN + ICMP_HLEN))
		return false;
	u8 *data = CTX_DATA(ctx), *ip = data + l3, *icmp;

	OPAQUE(ip);
	icmp = ip + IP_HLEN;
	if (data + L2_COPY > CTX_END(ctx) || icmp + ICMP_HLEN > CTX_END(ctx))
		return false;
	answer_write_l2(data, a);
	u64 pseudo = answer_write_ip(ip, pk, ICMP_HLEN + quoted, PROTO_ICMP_FAMILY);
	u64 sum = answer_write_icmp(icmp, pseudo, s->answer, s->answer_mtu);
	return answer_icmp_csum(ctx, pk, at, quoted, sum);
}
