/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * IPv6 programs of one hook. Its entry points become parts of those of lb4.c.
 */
#define LB_FAMILY 6
#include "hook_entries.h"
#include "programs.h"
