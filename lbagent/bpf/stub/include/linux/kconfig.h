/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * BCC includes this first of all; with it no kernel header is needed on the machine that compiles. It holds what BCC's own
 * headers take for granted: fixed-width types, a kernel version, and the one option they test.
 * LINUX_VERSION_CODE names the oldest kernel we support, so that BCC offers no helper it lacks.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef signed short __s16;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u64 __aligned_u64 __attribute__((aligned(8)));
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef __u16 __le16;
typedef __u32 __le32;

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;

typedef _Bool bool;
typedef __u64 size_t;
typedef __u64 uintptr_t;
typedef int pid_t;
enum { false, true };

#define NULL ((void *)0)
#define CONFIG_BPF_SYSCALL 1
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 15, 0)
