/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the programs of one family and hook behind the entry point. The loader puts a program named
 * call_HOOK_N_NAME into slot N of lb_calls_HOOK (scratch.h says what each slot expects).
 */
#pragma once
#include "answer.h"
#include "general.h"
#include "icmp.h"
#include "move.h"
#include "reply.h"
#include "steal.h"
#include "sweep.h"

#if LB_FAMILY == 4
#define GENERAL_NAME CALL_NAME(1, general4)
#define FLOW_NAME CALL_NAME(3, flow4)
#define CREATE_NAME CALL_NAME(5, create4)
#define ICMP_NAME CALL_NAME(7, icmp4)
#define ANSWER_NAME CALL_NAME(9, answer4)
#define REPLY_NAME CALL_NAME(11, reply4)
#define STEAL_NAME CALL_NAME(15, steal4)
#define SWEEP_NAME sweep4
#define MOVE_NAME move4
#else
#define GENERAL_NAME CALL_NAME(2, general6)
#define FLOW_NAME CALL_NAME(4, flow6)
#define CREATE_NAME CALL_NAME(6, create6)
#define ICMP_NAME CALL_NAME(8, icmp6)
#define ANSWER_NAME CALL_NAME(10, answer6)
#define REPLY_NAME CALL_NAME(12, reply6)
#define STEAL_NAME CALL_NAME(16, steal6)
#define SWEEP_NAME sweep6
#define MOVE_NAME move6
#endif

int GENERAL_NAME(lb_ctx *ctx)
{
	return general_main(ctx);
}

int FLOW_NAME(lb_ctx *ctx)
{
	return flow_main(ctx);
}

int CREATE_NAME(lb_ctx *ctx)
{
	return create_main(ctx);
}

int ICMP_NAME(lb_ctx *ctx)
{
	return icmp_run(ctx);
}

int ANSWER_NAME(lb_ctx *ctx)
{
	return answer_run(ctx);
}

int REPLY_NAME(lb_ctx *ctx)
{
	return reply_main(ctx);
}

int STEAL_NAME(lb_ctx *ctx)
{
	return steal_main(ctx);
}

#ifdef LB_HOOK_XDP
int SWEEP_NAME(lb_ctx *ctx)
{
	return sweep_main(ctx);
}
#else
int MOVE_NAME(lb_ctx *ctx)
{
	return move_main(ctx);
}
#endif
