/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what every other header builds on: the family's address type (LB_FAMILY 4 or 6, set by lb4.c and lb6.c),
 * the hook (LB_HOOK_XDP or LB_HOOK_TC, set by the build), memory access words, kernel helpers.
 *
 * Addresses and ports are kept as loaded from the packet (network order in memory); only the names that say `host` are not.
 * BCC emits mcpu v1 (no 32-bit jumps): counters and bounds are u64, everything but an entry point is AI.
 */
#pragma once

#define AI static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#define HTONS(x) ((u16)((((x) & 0xff) << 8) | (((x) >> 8) & 0xff)))
#define NTOHS(x) HTONS(x)

/* Shared memory: one load or store each, never merged, split or repeated by the compiler. */
#define RD64(p) (*(volatile u64 *)(p))
#define RD16(p) (*(volatile u16 *)(p))
#define WR64(p, v) (*(volatile u64 *)(p) = (v))
#define WR16(p, v) (*(volatile u16 *)(p) = (v))
#define WR8(p, v) (*(volatile u8 *)(p) = (v))
#if __clang_major__ < 12 /* no compare-and-swap for BPF yet (Ubuntu 22.04): bpf/build/rewrite.py puts the instruction in for this call */
static u64 (*cas_call)(u64 *p, u64 old, u64 new) = (void *)CAS_CALL;
#define CAS(p, old, new) cas_call((u64 *)(p), (u64)(old), (u64)(new))
#else
#define CAS(p, old, new) __sync_val_compare_and_swap((u64 *)(p), (u64)(old), (u64)(new))
#endif
#define OPAQUE(x) asm volatile("" : "+r"(x)) /* or the compiler turns arithmetic back into branches */
#define FENCE(x) asm volatile("" : "+r"(x)::"memory")
#ifdef LB_ARM64 /* weak memory order: an atomic with its result used is a full barrier in BPF's memory model */
#define MB() \
	do { \
		u64 mb_ = 0; \
		mb_ = CAS(&mb_, 0, 1); \
		asm volatile("" ::"r"(mb_) : "memory"); \
	} while (0)
#else /* x86 keeps stores in order and loads in order */
#define MB() asm volatile("" ::: "memory")
#endif

#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_ICMP6 58
#define ETH_HLEN 14 /* bytes */
#define ETH_IP4 HTONS(0x0800)
#define ETH_IP6 HTONS(0x86dd)
#define ETH_VLAN HTONS(0x8100)
#define ETH_QINQ HTONS(0x88a8)
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_HLEN 20
#define UDP_HLEN 8

#if LB_FAMILY == 4
typedef u32 lb_word;
typedef struct {
	lb_word w[1];
} lb_addr;
#define ADDR_WORDS 1
#define ADDR_HALVES 1 /* u32 words an address */
#define IP_HLEN 20    /* bytes, without options */
#define ETH_FAMILY ETH_IP4
#define PROTO_ICMP_FAMILY PROTO_ICMP
#define FAMILY(name) lb4_##name /* struct FAMILY(key) */
#define FAMILY_MAP(name) MAP_lb4_##name
#define FAMILY_CALL(n) (n)
#else
typedef u64 lb_word;
typedef struct {
	lb_word w[2];
} lb_addr;
#define ADDR_WORDS 2
#define ADDR_HALVES 4
#define IP_HLEN 40
#define ETH_FAMILY ETH_IP6
#define PROTO_ICMP_FAMILY PROTO_ICMP6
#define FAMILY(name) lb6_##name
#define FAMILY_MAP(name) MAP_lb6_##name
#define FAMILY_CALL(n) ((n) + 1)
#endif

AI bool addr_eq(const lb_addr *a, const lb_addr *b)
{
#if LB_FAMILY == 4
	return a->w[0] == b->w[0];
#else
	return !((a->w[0] ^ b->w[0]) | (a->w[1] ^ b->w[1]));
#endif
}

AI bool addr_is_zero(const lb_addr *a)
{
#if LB_FAMILY == 4
	return !a->w[0];
#else
	return !(a->w[0] | a->w[1]);
#endif
}

/* Loads and stores in packets and records; any alignment of 2 (x86 and arm64 do not mind). */
AI void addr_load(lb_addr *a, const void *from)
{
	a->w[0] = *(lb_word *)from;
#if LB_FAMILY == 6
	a->w[1] = *(u64 *)(from + 8);
#endif
}

AI void addr_store(void *to, const lb_addr *a)
{
	*(lb_word *)to = a->w[0];
#if LB_FAMILY == 6
	*(u64 *)(to + 8) = a->w[1];
#endif
}

/* The hook: its context and its verdicts. */
#ifdef LB_HOOK_XDP
typedef struct xdp_md lb_ctx;
#define LB_PASS XDP_PASS
#define LB_DROP XDP_DROP
#define HOOK_CALLS MAP_lb_calls_xdp
#define CALL_NAME(n, name) call_xdp_##n##_##name
#define CTX_IFINDEX(ctx) ((u64)(ctx)->ingress_ifindex)
#define CTX_LEN(ctx) ((u64)(CTX_END(ctx) - CTX_DATA(ctx)))
#define FRAME_LEN(ctx, data, end) ((u64)((end) - (data))) /* the same, of pointers at hand */
#else
typedef struct __sk_buff lb_ctx;
#define LB_PASS 0 /* TC_ACT_OK */
#define LB_DROP 2 /* TC_ACT_SHOT */
#define HOOK_CALLS MAP_lb_calls_tc
#define CALL_NAME(n, name) call_tc_##n##_##name
#define CTX_IFINDEX(ctx) ((u64)(ctx)->ifindex)
#define CTX_LEN(ctx) ((u64)(ctx)->len)
#define FRAME_LEN(ctx, data, end) CTX_LEN(ctx)
#endif
#define CTX_DATA(ctx) ((u8 *)(long)(ctx)->data)
#define CTX_END(ctx) ((u8 *)(long)(ctx)->data_end)

/* Kernel helpers under names of our own: BCC's prototypes are not always right, and its map methods are not used.
 * The oldest kernel is 5.15, so helpers up to 178. */
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u64 (*cpu_number)(void) = (void *)8;
static long (*tail_call)(void *ctx, void *map, u64 slot) = (void *)12;
#define REDIRECT_INGRESS 1 /* BPF_F_INGRESS */
static long (*redirect_to)(u32 ifindex, u64 flags) = (void *)23;
static long (*fib_lookup)(void *ctx, void *params, int size, u32 flags) = (void *)69;
static u64 (*jiffies)(void) = (void *)118;
static u64 (*coarse_ns)(void) = (void *)160;
#ifdef LB_HOOK_TC
static long (*skb_store)(void *skb, u32 offset, const void *from, u32 len, u64 flags) = (void *)9;
static long (*l3_csum)(void *skb, u32 offset, u64 from, u64 to, u64 flags) = (void *)10;
static long (*l4_csum)(void *skb, u32 offset, u64 from, u64 to, u64 flags) = (void *)11;
static long (*skb_pull)(void *skb, u32 len) = (void *)39;
static long (*redirect_neigh)(u32 ifindex, void *params, int plen, u64 flags) = (void *)152;
#else
static long (*adjust_head)(void *ctx, int delta) = (void *)44;
#endif
