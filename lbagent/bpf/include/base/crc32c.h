/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the CRC32c of SCTP packets (RFC 9260 §6.8, appendix A), which covers the packet from its ports on, with a checksum of
 * 0. A CRC is linear over GF(2): if some bits of a packet change, its CRC changes by the CRC of these bits alone (without the inversions
 * at both ends), whatever the packet holds. So new ports need no payload: their difference, shifted through the register once for each
 * bit of the packet.
 *
 * lb_crc32c has the shift by 2^n bytes for each n, as a matrix: a table for each four bits of the register, of what they become. A length
 * is a sum of powers of two, so 16 shifts suffice for any packet. maps/crc32c.py has the same.
 */
#pragma once
#include "maps.h"

#define CRC32C_ROW (CRC32C_NIBBLES * CRC32C_VALUES * 4) /* bytes of a shift's tables */

/* Returns the register after zeros of 2^n bytes; `n`: a constant. */
AI u64 crc32c_shift(u64 crc, const u64 n)
{
	u64 shifted = 0;

#pragma unroll
	for (u64 nibble = 0; nibble < CRC32C_NIBBLES; nibble++) {
		const u8 *table = (const u8 *)MAPVAL(lb_crc32c) + n * CRC32C_ROW + nibble * CRC32C_VALUES * 4;

		shifted ^= *(const u32 *)(table + (crc >> nibble * 4 & (CRC32C_VALUES - 1)) * 4);
	}
	return shifted;
}

/* Returns the change of the CRC of a packet of `length` bytes when its first four change by `difference` (XOR), both as they lie in memory. */
AI u64 crc32c_change(u64 difference, u64 length)
{
	u64 crc = difference;

#pragma unroll
	for (u64 n = 0; n < CRC32C_SHIFTS; n++)
		if (length & 1ULL << n)
			crc = crc32c_shift(crc, n);
	return crc;
}

/* Returns the register after four more bytes, as they lie in memory. */
AI u64 crc32c_word(u64 crc, u32 word)
{
	return crc32c_shift(crc ^ word, 2);
}
