/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * IPv4 programs of one hook, and the entry points of both families: IPv6 frames continue with the entry points of lb6.c, which
 * bpf/compiler/join_entries.py appends to these.
 */
#define LB_FAMILY 4
#include "hook_entries.h"
#include "programs.h"
