/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what every other header builds on: the family's address type (LB_FAMILY 4 or 6, set by lb4.c and lb6.c),
 * macros for memory access, and the kernel helpers that any program may call (those of a hook are in hook_*.h).
 *
 * Addresses and ports are kept as loaded from the packet (network order in memory); only names with `host` are in host order. BCC
 * emits mcpu v1 (no 32-bit jumps): counters and bounds are u64, everything but an entry point is AI.
 */
#pragma once

#define AI static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define NO_UNROLL _Pragma("clang loop unroll(disable)")

/* Shared memory: one load or store each, never merged, split or repeated by the compiler. */
#define RD64(p) (*(volatile u64 *)(p))
#define RD32(p) (*(volatile u32 *)(p))
#define RD16(p) (*(volatile u16 *)(p))
#ifdef LB_DRY /* trace.h: nothing is stored */
#define LB_IS_DRY 1
#define WR64(p, v) ((void)(p), (void)(v))
#define WR32(p, v) WR64(p, v)
#define WR16(p, v) WR64(p, v)
#define WR8(p, v) WR64(p, v)
#else
#define LB_IS_DRY 0
#define WR64(p, v) (*(volatile u64 *)(p) = (v))
#define WR32(p, v) (*(volatile u32 *)(p) = (v))
#define WR16(p, v) (*(volatile u16 *)(p) = (v))
#define WR8(p, v) (*(volatile u8 *)(p) = (v))
#endif
#if __clang_major__ < 12 /* no compare-and-swap for BPF yet (Ubuntu 22.04): bpf/compiler/rewrite.py replaces this call by the instruction */
static u64 (*cas_call)(u64 *p, u64 old, u64 new) = (void *)CAS_CALL;
#define SWAP(p, old, new) cas_call((u64 *)(p), (u64)(old), (u64)(new))
#else
#define SWAP(p, old, new) __sync_val_compare_and_swap((u64 *)(p), (u64)(old), (u64)(new))
#endif
#if LB_IS_DRY
#define CAS(p, old, new) ((void)(p), (void)(new), (u64)(old)) /* reports success */
#else
#define CAS(p, old, new) SWAP(p, old, new)
#endif
/* A field of a word, and a value at its place: maps/flow_layout.py has the places, the prelude name##_SHIFT and name##_BITS. */
#define FIELD(name, word) ((u64)(word) >> name##_SHIFT & ((1ULL << name##_BITS) - 1))
#define IN_FIELD(name, value) (((u64)(value) & ((1ULL << name##_BITS) - 1)) << name##_SHIFT)
#define OPAQUE(x) asm volatile("" : "+r"(x)) /* keeps the compiler from turning arithmetic back into branches */
#define FENCE(x) asm volatile("" : "+r"(x)::"memory")
/* `x` keeps its value, but the verifier forgets it (`other`: an unknown u64): it follows the code after it once, not once for each
 * value. */
#define FORGET(x, other) asm volatile("%0 ^= %1\n\t%0 ^= %1" : "+&r"(x) : "r"(other))
/* A key on the stack, in words of 8 bytes: WORDS_OF its type, and CLEAR()ed; a u32 key is a u64. For a word written in parts the
 * verifier tracks the earlier content, and follows the code after it once for each content. */
#define WORDS_OF(type) struct { type is; } __attribute__((aligned(8)))
#define CLEAR(p) \
	do { \
		void *p_ = (p); \
		__builtin_memset(p_, 0, sizeof(*(p))); \
		FENCE(p_); \
	} while (0)
/* 1 if bit 63 of `x` is set, else 0, as a factor: where a constant is masked, a mask would make the verifier follow two paths. */
#define SIGN(x) ({ u64 sign_ = (u64)(x) >> 63; OPAQUE(sign_); sign_; })
#ifdef LB_ARM64 /* weak memory order: an atomic whose result is used is a full barrier in BPF's memory model */
#define MB() \
	do { \
		u64 mb_ = 0; \
		mb_ = SWAP(&mb_, 0, 1); \
		asm volatile("" ::"r"(mb_) : "memory"); \
	} while (0)
#else /* x86 keeps stores in order and loads in order */
#define MB() asm volatile("" ::: "memory")
#endif

/* The greater of two numbers below 2^63, and the smaller one. No branch. */
AI u64 max64(u64 a, u64 b)
{
	u64 less = a - b;

	OPAQUE(less);
	less = (u64)((s64)less >> 63);
	OPAQUE(less);
	return a ^ ((a ^ b) & less);
}

AI u64 min64(u64 a, u64 b)
{
	return a ^ b ^ max64(a, b);
}

#if LB_FAMILY == 4
typedef u32 lb_word;
typedef struct {
	lb_word w[1];
} lb_addr;
#define ADDR_HALVES 1 /* u32 words per address */
#define FAMILY(name) lb4_##name /* struct FAMILY(key) */
#define FAMILY_MAP(name) MAP_lb4_##name
#define FAMILY_CALL(n) (n)
#define FAMILY_ENTRY(name) name
#else
typedef u64 lb_word;
typedef struct {
	lb_word w[2];
} lb_addr;
#define ADDR_HALVES 4
#define FAMILY(name) lb6_##name
#define FAMILY_MAP(name) MAP_lb6_##name
#define FAMILY_CALL(n) ((n) + 1)
#define FAMILY_ENTRY(name) name##6
#endif

/* Returns 0 if they are the same. */
AI u64 addr_differs(const lb_addr *a, const lb_addr *b)
{
	u64 differs = a->w[0] ^ b->w[0];

#if LB_FAMILY == 6
	differs |= a->w[1] ^ b->w[1];
#endif
	OPAQUE(differs);
	return differs;
}

AI bool addr_eq(const lb_addr *a, const lb_addr *b)
{
	return !addr_differs(a, b);
}

/* Loads and stores in packets and records; any alignment of 2 (x86 and arm64 allow it). */
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

/* Kernel helpers under own names: BCC's prototypes are not always right, and its map methods are not used. The oldest kernel is
 * 5.15, so helpers up to 178. */
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
#if LB_IS_DRY
#define map_update(map, key, value, flags) ((void)(key), (void)(value), 0)
#define map_delete(map, key) ((void)(key), 0)
#else
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
#endif
static u64 (*monotonic_ns)(void) = (void *)5;
static u32 (*random32)(void) = (void *)7;
static u64 (*cpu_number)(void) = (void *)8;
static u64 (*jiffies)(void) = (void *)118;
static u64 (*coarse_ns)(void) = (void *)160;
