/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Socket programs of IPv4 and of IPv6 sockets that use IPv4, and the entry points of all IPv6 sockets: they go on with those of
 * sock6.c, which bpf/compiler/join_entries.py puts behind these.
 */
#define LB_FAMILY 4
#include "sock.h"
