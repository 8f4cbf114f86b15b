/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains how a translated SCTP packet leaves the programs of all protocols: the program CALL_SCTP_SUM corrects its checksum
 * and sends it, so that those programs have none of the tables of a CRC.
 */
#pragma once
#include "fwd.h"

/* `s` has the packet as it came and the egress path. `cut`: must it fit `mtu`, in fragments if it does not? */
AI int sctp_go(lb_ctx *ctx, struct lb_scratch *s, u64 cut, u64 mtu)
{
	s->answer_mtu = cut ? mtu : 0;
	lb_call(ctx, FAMILY_CALL(CALL_SCTP_SUM));
	return verdict(ctx, REASON_DROP_INTERNAL, LB_DROP);
}
