/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the programs of one family and hook behind the entry point. The loader puts a program named
 * call_HOOK_N_NAME into slot N of lb_calls_HOOK (scratch.h says what each slot expects).
 */
#pragma once
#include "answer.h"
#include "parse_full.h"
#include "icmp.h"
#include "migrate.h"
#include "reply.h"
#include "snat_reclaim.h"
#include "sweep.h"

#if LB_FAMILY == 4
#define PARSE_FULL_NAME CALL_NAME(1, parse_full4)
#define SLOW_PATH_NAME CALL_NAME(3, slow_path4)
#define FLOW_CREATE_NAME CALL_NAME(5, flow_create4)
#define ICMP_NAME CALL_NAME(7, icmp4)
#define ANSWER_NAME CALL_NAME(9, answer4)
#define REPLY_NAME CALL_NAME(11, reply4)
#define SNAT_RECLAIM_NAME CALL_NAME(15, snat_reclaim4)
#define SWEEP_NAME sweep4
#define MIGRATE_NAME migrate4
#else
#define PARSE_FULL_NAME CALL_NAME(2, parse_full6)
#define SLOW_PATH_NAME CALL_NAME(4, slow_path6)
#define FLOW_CREATE_NAME CALL_NAME(6, flow_create6)
#define ICMP_NAME CALL_NAME(8, icmp6)
#define ANSWER_NAME CALL_NAME(10, answer6)
#define REPLY_NAME CALL_NAME(12, reply6)
#define SNAT_RECLAIM_NAME CALL_NAME(16, snat_reclaim6)
#define SWEEP_NAME sweep6
#define MIGRATE_NAME migrate6
#endif

int PARSE_FULL_NAME(lb_ctx *ctx)
{
	return parse_full_main(ctx);
}

int SLOW_PATH_NAME(lb_ctx *ctx)
{
	return slow_path_main(ctx);
}

int FLOW_CREATE_NAME(lb_ctx *ctx)
{
	return flow_create_main(ctx);
}

int ICMP_NAME(lb_ctx *ctx)
{
	return icmp_main(ctx);
}

int ANSWER_NAME(lb_ctx *ctx)
{
	return answer_main(ctx);
}

int REPLY_NAME(lb_ctx *ctx)
{
	return reply_main(ctx);
}

int SNAT_RECLAIM_NAME(lb_ctx *ctx)
{
	return snat_reclaim_main(ctx);
}

#ifdef LB_HOOK_XDP
int SWEEP_NAME(lb_ctx *ctx)
{
	return sweep_main(ctx);
}
#else
int MIGRATE_NAME(lb_ctx *ctx)
{
	return migrate_main(ctx);
}
#endif
