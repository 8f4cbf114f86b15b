/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the program's own answers: TCP RST, ICMP port unreachable, too big, time exceeded. All come from the
 * frontend's address, as if the service itself had spoken, and go back the way the packet came.
 *
 * Input: an untranslated packet from a client, with its offsets and the kind of answer. At most cfg->reject_rate answers a
 * second and CPU, counted apart for rejections and for path errors, so that a flood against a service without backends does
 * not silence PMTU discovery. Never answered: group addresses, unspecified and loopback sources, later fragments, RST.
 * Words are kept as loaded (network order); ones' complement sums of them are byte order neutral (RFC 1071 §2.B).
 */
#pragma once

enum answer_kind { ANSWER_RST, ANSWER_UNREACHABLE, ANSWER_TOO_BIG, ANSWER_TTL };

#define ICMP_HEADER 8
#define TCP_HEADER 20
#if LB_FAMILY == 4
#define IP_HEADER 20
#define ADDR_WORDS 1
#define ADDR_AT 12
#define QUOTE_MAX 544 /* bytes, whole words: the error stays within 576 (RFC 1812 §4.3.2.3) */
#define ICMP_PROTO 1
#define ICMP_PORT_UNREACHABLE 0x0303 /* type, code */
#define ICMP_TOO_BIG 0x0304
#define ICMP_TIME_EXCEEDED 0x0b00
#else
#define IP_HEADER 40
#define ADDR_WORDS 4
#define ADDR_AT 8
#define QUOTE_MAX 1232 /* bytes: the error stays within 1280 (RFC 4443 §2.4 c) */
#define ICMP_PROTO 58
#define ICMP_PORT_UNREACHABLE 0x0104
#define ICMP_TOO_BIG 0x0200
#define ICMP_TIME_EXCEEDED 0x0300
#endif
#define L2_COPY 24       /* bytes: Ethernet and two VLAN tags, rounded up to whole words */
#define OFFSET_MASK 1023 /* bounds an offset from the scratch record for the verifier */
#define ANSWER_HOPS 64

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* What the answer is made of, read before the packet is reshaped. */
struct answer {
	u32 l2[L2_COPY / 4];
	u32 vip[ADDR_WORDS], client[ADDR_WORDS];
	u32 ports;    /* as in the packet: client, VIP */
	u32 seq, ack; /* of the RST */
	u32 length;   /* bytes of the IP packet */
	u8 flags;     /* of the TCP segment received */
};

/* Token bucket in one u64: jiffies (low 32 bits) of the last refill, tokens in units of 1/HZ answer (high 32 bits).
 * Per CPU, so no atomics. An empty map is a full bucket: the first second's worth may be answered at once. */
AI bool answer_allowed(u64 *bucket)
{
	u64 now = lb_jiffies() & 0xffffffff, hz = CFG->hz, rate = CFG->reject_rate;
	u64 elapsed = (now - *bucket) & 0xffffffff, tokens = *bucket >> 32;

	if (elapsed > hz)
		elapsed = hz;
	tokens += elapsed * rate;
	if (tokens > rate * hz)
		tokens = rate * hz;
	if (tokens < hz) {
		*bucket = tokens << 32 | now;
		return false;
	}
	*bucket = (tokens - hz) << 32 | now;
	return true;
}

/* Sum of `len` bytes at p, no more than `max` (a constant, whole u64 words). */
AI u64 sum_bytes(u8 *p, u8 *end, u64 len, const u64 max)
{
	u64 sum = 0, tail = len & 0x7f8;

	_Pragma("clang loop unroll(disable)")
	for (u64 i = 0; i < max / 8; i++) {
		if (i * 8 + 8 > len || p + i * 8 + 8 > end)
			break;
		sum += (u64)*(u32 *)(p + i * 8) + *(u32 *)(p + i * 8 + 4);
	}
	p += tail;
	if ((len & 4) && p + 4 <= end) {
		sum += *(u32 *)p;
		p += 4;
	}
	if ((len & 2) && p + 2 <= end) {
		sum += *(u16 *)p;
		p += 2;
	}
	if ((len & 1) && p + 1 <= end)
		sum += *p;
	return sum;
}

/* The sender must be one that can be answered (RFC 1122 §3.2.2, RFC 4443 §2.4 e). */
AI bool answerable(const struct answer *a)
{
	if (a->l2[0] & 1) /* group bit of the destination MAC */
		return false;
#if LB_FAMILY == 4
	u8 first = (u8)a->client[0];

	return first && first != 127 && first < 224 && (u8)a->vip[0] < 224;
#else
	if ((u8)a->client[0] == 0xff || (u8)a->vip[0] == 0xff)
		return false;
	return a->client[0] | a->client[1] | a->client[2] | (a->client[3] & ~HTONL(1));
#endif
}

/* Read what is needed of the packet; false: cannot or must not be answered. l3, l4: offsets in the frame. */
AI bool answer_read(lb_ctx *ctx, u64 l3, u64 l4, u32 kind, struct answer *a)
{
	u8 *data = PKT_DATA(ctx), *end = PKT_END(ctx), *ip = data + l3, *tcp = data + l4;

	if (data + L2_COPY > end || ip + IP_HEADER > end || tcp + 8 > end)
		return false;
	for (u64 i = 0; i < L2_COPY / 4; i++)
		a->l2[i] = *(u32 *)(data + i * 4);
	for (u64 i = 0; i < ADDR_WORDS; i++) {
		a->client[i] = *(u32 *)(ip + ADDR_AT + i * 4);
		a->vip[i] = *(u32 *)(ip + ADDR_AT + (ADDR_WORDS + i) * 4);
	}
	a->ports = *(u32 *)tcp;
#if LB_FAMILY == 4
	a->length = HTONS(*(u16 *)(ip + 2));
	if (*(u16 *)(ip + 6) & HTONS(0x1fff))
		return false;
#else
	a->length = HTONS(*(u16 *)(ip + 4)) + IP_HEADER;
#endif
	if (kind != ANSWER_RST)
		return answerable(a);
	if (tcp + TCP_HEADER > end)
		return false;
	a->flags = tcp[13];
	a->seq = *(u32 *)(tcp + 4);
	a->ack = *(u32 *)(tcp + 8);
	/* SEG.LEN: SYN and FIN count as one octet each (RFC 9293 §3.4) */
	u32 header = (l4 - l3) + ((tcp[12] >> 4) << 2);
	u32 segment = (a->length > header ? a->length - header : 0) + ((a->flags & TCP_SYN) >> 1) + (a->flags & TCP_FIN);

	if (a->flags & TCP_ACK) { /* <SEQ=SEG.ACK><CTL=RST>: RFC 9293 §3.10.7.1 */
		a->seq = a->ack;
		a->ack = 0;
	} else { /* <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK> */
		a->ack = HTONL(HTONL(a->seq) + segment);
		a->seq = 0;
	}
	return !(a->flags & TCP_RST) && answerable(a);
}

/* Cut the frame to `keep` bytes and put `front` bytes before it. All packet pointers are void afterwards. */
AI bool answer_reshape(lb_ctx *ctx, u64 have, u64 keep, u64 front)
{
#ifdef LB_HOOK_XDP
	if (keep != have && xdp_adjust_tail(ctx, (int)keep - (int)have))
		return false;
	return !front || !xdp_adjust_head(ctx, -(int)front);
#else
	/* also where the length stays: it makes the whole frame linear and writable, and ends segmentation offload */
	if (skb_change_tail(ctx, keep, 0))
		return false;
	return !front || !skb_change_head(ctx, front, 0);
#endif
}

/* Write the Ethernet header back with the MAC addresses swapped, VLAN tags as they were. */
AI void answer_write_l2(u8 *data, const struct answer *a)
{
	*(u32 *)data = a->l2[1] >> 16 | a->l2[2] << 16;
	*(u32 *)(data + 4) = a->l2[2] >> 16 | a->l2[0] << 16;
	*(u32 *)(data + 8) = a->l2[0] >> 16 | a->l2[1] << 16;
	for (u64 i = 3; i < L2_COPY / 4; i++)
		*(u32 *)(data + i * 4) = a->l2[i];
}

/* Write the IP header of `payload` bytes from the VIP to the client; return the pseudo header's sum. */
AI u64 answer_write_ip(u8 *ip, const struct answer *a, u32 payload, u32 proto)
{
	u64 addresses = 0;

	for (u64 i = 0; i < ADDR_WORDS; i++) {
		*(u32 *)(ip + ADDR_AT + i * 4) = a->vip[i];
		*(u32 *)(ip + ADDR_AT + (ADDR_WORDS + i) * 4) = a->client[i];
		addresses += (u64)a->vip[i] + a->client[i];
	}
#if LB_FAMILY == 4
	/* TOS 0xc0 (internetwork control) as routers set it for errors, DF, no identification (RFC 6864) */
	u32 first = HTONL(0x45000000 | (proto == ICMP_PROTO ? 0xc00000 : 0) | (IP_HEADER + payload));
	u32 third = HTONL(ANSWER_HOPS << 24 | proto << 16);

	*(u32 *)ip = first;
	*(u32 *)(ip + 4) = HTONL(0x4000);
	*(u32 *)(ip + 8) = third;
	*(u16 *)(ip + 10) = ~csum_fold(addresses + first + HTONL(0x4000) + third);
#else
	*(u32 *)ip = HTONL(0x60000000);
	*(u32 *)(ip + 4) = HTONL(payload << 16 | proto << 8 | ANSWER_HOPS);
#endif
	return addresses + HTONS(payload) + HTONS(proto);
}

#ifdef LB_HOOK_TC
/* Does the device still have to complete this skb's checksum (CHECKSUM_PARTIAL)? Nothing tells a program directly, but the
 * kernel leaves a checksum without pseudo header alone in just that case. `at` is a field that holds 0 and is written
 * later. All packet pointers are void afterwards. */
AI bool skb_partial(lb_ctx *ctx, u64 at)
{
	skb_l4_csum_replace(ctx, at, 0, 1, 2);
	u8 *data = PKT_DATA(ctx), *end = PKT_END(ctx);

	return data + at + 2 <= end && *(u16 *)(data + at) == 0;
}
#endif

/* The packet becomes a RST; true when it may be sent. */
AI bool answer_rst(lb_ctx *ctx, u64 l3, const struct answer *a)
{
	u64 have = pkt_length(ctx), at = l3 + IP_HEADER;

	if (!answer_reshape(ctx, have, at + TCP_HEADER, 0))
		return false;
	u8 *data = PKT_DATA(ctx), *end = PKT_END(ctx), *tcp = data + at;

	if (data + L2_COPY > end || tcp + TCP_HEADER > end)
		return false;
	answer_write_l2(data, a);
	u64 pseudo = answer_write_ip(data + l3, a, TCP_HEADER, 6);
	u32 ports = a->ports >> 16 | a->ports << 16;
	u32 flags = HTONL(0x50000000 | TCP_RST << 16 | (a->flags & TCP_ACK ? 0 : TCP_ACK << 16));

	*(u32 *)tcp = ports;
	*(u32 *)(tcp + 4) = a->seq;
	*(u32 *)(tcp + 8) = a->ack;
	*(u32 *)(tcp + 12) = flags; /* no window */
	*(u32 *)(tcp + 16) = 0;
	u16 sum = ~csum_fold(pseudo + ports + a->seq + a->ack + flags);
#ifdef LB_HOOK_TC
	if (skb_partial(ctx, at + 16))
		sum = csum_fold(pseudo); /* the device adds the rest */
	data = PKT_DATA(ctx);
	tcp = data + at;
	if (tcp + TCP_HEADER > (u8 *)PKT_END(ctx))
		return false;
#endif
	*(u16 *)(tcp + 16) = sum;
	return true;
}

/* What the quoted transport checksum (at `check` behind l4) turns into when the device completes it after us. */
AI u64 completed(u64 transport, u16 field)
{
	return (u16)~csum_fold(transport) + (u64)(u16)~field;
}

/* The packet becomes an ICMP error that quotes its beginning; true when it may be sent. */
AI bool answer_icmp(lb_ctx *ctx, u64 l3, u64 l4, u32 what, u32 rest, u32 proto, const struct answer *a)
{
	u64 have = pkt_length(ctx), quoted = a->length, at = l3 + IP_HEADER, header = l4 - l3;

	if (quoted > QUOTE_MAX)
		quoted = QUOTE_MAX;
	if (l3 + quoted > have || header > quoted)
		return false;
	if (!answer_reshape(ctx, have, l3 + quoted, IP_HEADER + ICMP_HEADER))
		return false;
	u8 *data = PKT_DATA(ctx), *end = PKT_END(ctx), *icmp = data + at;

	if (data + L2_COPY > end || icmp + ICMP_HEADER > end)
		return false;
	answer_write_l2(data, a);
	u64 pseudo = answer_write_ip(data + l3, a, ICMP_HEADER + quoted, ICMP_PROTO);
	u64 sum = (LB_FAMILY == 6 ? pseudo : 0) + HTONS(what) + rest;

	*(u32 *)icmp = HTONS(what);
	*(u32 *)(icmp + 4) = rest;
#ifdef LB_HOOK_XDP
	*(u16 *)(icmp + 2) = ~csum_fold(sum + sum_bytes(icmp + ICMP_HEADER, end, quoted, QUOTE_MAX));
#else
	u64 field_at = at + ICMP_HEADER + header + (proto == 6 ? 16 : 6);
	u64 transport = sum_bytes(icmp + ICMP_HEADER + header, end, quoted - header, QUOTE_MAX);

	sum += sum_bytes(icmp + ICMP_HEADER, end, header, OFFSET_MASK + 1) + transport;
	if (skb_partial(ctx, at + 2)) {
		u8 *field = (u8 *)PKT_DATA(ctx) + field_at;

		if (field + 2 <= (u8 *)PKT_END(ctx))
			sum += completed(transport, *(u16 *)field);
	}
	icmp = (u8 *)PKT_DATA(ctx) + at;
	if (icmp + ICMP_HEADER > (u8 *)PKT_END(ctx))
		return false;
	*(u16 *)(icmp + 2) = ~csum_fold(sum);
#endif
	return true;
}

/* Answer the packet: `kind`, and the MTU (host order) of ANSWER_TOO_BIG. True: it is the answer now, send it back. */
AI bool answer(lb_ctx *ctx, u64 l3, u64 l4, u32 proto, u32 kind, u32 mtu)
{
	struct answer a = {};
	u32 zero = 0;
	u64 *buckets = lb_lookup(MAPFD(lb_ratelimit), &zero);

	l3 &= 31;
	l4 &= OFFSET_MASK;
	if (!buckets || l4 < l3 || !answer_read(ctx, l3, l4, kind, &a))
		return false;
	if (!answer_allowed(kind <= ANSWER_UNREACHABLE ? buckets : buckets + 1))
		return false;
	if (kind == ANSWER_RST)
		return answer_rst(ctx, l3, &a);
	u32 what = kind == ANSWER_UNREACHABLE ? ICMP_PORT_UNREACHABLE : kind == ANSWER_TOO_BIG ? ICMP_TOO_BIG : ICMP_TIME_EXCEEDED;

	return answer_icmp(ctx, l3, l4, what, kind == ANSWER_TOO_BIG ? HTONL(mtu) : 0, proto, &a);
}
