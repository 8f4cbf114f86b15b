/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the includes of every function NAME_main that a program runs. bpf/compiler/c_source.py appends the programs
 * themselves to lb4.c and lb6.c, from the list in bpf/tail_calls.py, which also has their slots.
 */
#pragma once
#include "announce.h"
#include "answer.h"
#include "choose.h"
#include "direct.h"
#include "echo.h"
#include "flow_delete.h"
#include "fragmentation.h"
#include "icmp.h"
#include "l7.h"
#include "migrate.h"
#include "parse_full.h"
#include "reply.h"
#include "sctp.h"
#include "snat_reclaim.h"
#include "sweep.h"
#include "verdict_event.h"
