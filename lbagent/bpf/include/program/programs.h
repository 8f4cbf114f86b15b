/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the way to every function NAME_main that a program runs. The programs themselves stand behind the last line
 * of lb4.c and lb6.c: bpf/compiler/c_source.py writes them from the list in bpf/tail_calls.py, which has their slots too.
 */
#pragma once
#include "announce.h"
#include "answer.h"
#include "direct.h"
#include "fragmentation.h"
#include "icmp.h"
#include "migrate.h"
#include "parse_full.h"
#include "reply.h"
#include "snat_reclaim.h"
#include "sweep.h"
