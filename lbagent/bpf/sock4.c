/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Socket programs for IPv4 sockets and for IPv6 sockets that use IPv4, and the entry points of all IPv6 sockets: these continue
 * with those of sock6.c, which bpf/compiler/join_entries.py appends to these.
 */
#define LB_FAMILY 4
#include "sock.h"
