/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Shared by the reference programs: helpers, header structs, checksums. Independent of lbagent's own headers: with them a reference
 * would change together with the measured program. Maps are symbolic numbers that bench/programs.py replaces. */
#pragma once

#define inline_fn static __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define HTONS(x) ((u16)((((x) & 0xff) << 8) | (((x) >> 8) & 0xff)))
#define HTONL(x) __builtin_bswap32(x)

#define TCP 6
#define UDP 17
#define SCTP 132
#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static long (*redirect)(u32 ifindex, u64 flags) = (void *)23;
static u64 (*jiffies)(void) = (void *)118;

#if FAMILY == 4
struct addr { u32 w[1]; };
#define ADDR_WORDS 1
#define ETHERTYPE HTONS(0x0800)
#define IP_SIZE 20
#define SRC_AT 26 /* byte of the source address in the frame; the destination follows it */
#else
struct addr { u64 w[2]; };
#define ADDR_WORDS 2
#define ETHERTYPE HTONS(0x86dd)
#define IP_SIZE 40
#define SRC_AT 22
#endif
#define L4_AT (14 + IP_SIZE)
#define DST_AT (SRC_AT + (int)sizeof(struct addr))

/* Ones' complement sum of an address, as 16-bit words, not folded. */
inline_fn u64 addr_sum(const struct addr *a)
{
#if FAMILY == 4
	return a->w[0];
#else
	return (a->w[0] & 0xffffffff) + (a->w[0] >> 32) + (a->w[1] & 0xffffffff) + (a->w[1] >> 32);
#endif
}

/* The same of the complement: the part of an old value to subtract (RFC 1624 eq. 3). */
inline_fn u64 addr_minus(const struct addr *a)
{
#if FAMILY == 4
	return (u32)~a->w[0];
#else
	u64 x = ~a->w[0], y = ~a->w[1];
	return (x & 0xffffffff) + (x >> 32) + (y & 0xffffffff) + (y >> 32);
#endif
}

inline_fn u16 fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}
