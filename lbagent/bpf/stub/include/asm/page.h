/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause - BCC's ring buffer macro wants a page size */
#pragma once
#define PAGE_SIZE 4096
