/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause - all types are in linux/kconfig.h */
