/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The first reference: a program that only returns. Its cost is the loop of BPF_PROG_TEST_RUN. */
int loop(struct xdp_md *ctx)
{
	return XDP_TX;
}
