/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause - BCC brings its own bpf.h and wants only the file to exist */
