/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Socket programs for IPv6. They become parts of those of sock4.c.
 */
#define LB_FAMILY 6
#include "sock.h"
