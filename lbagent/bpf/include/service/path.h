/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the readers of a backend's path record and of a next hop's. A path's meta word (port, generation, flags, next
 * hop, number of the source address, MTU) is one load; user space stores it last.
 *
 * A backend has one more record for each extra SNAT address of this node (--snat-address): record n is n * extra_snat_stride
 * records after the first and has its own backend id, so a flow's value word and its SNAT slot identify source address and backend,
 * and the fast path needs no extra read.
 */
#pragma once
#include "l4.h"
#include "maps.h"
#include "wire.h"

typedef struct FAMILY(path) lb_path;
/* As it is stored. The record of a backend behind a range of ports has port 0 and META_KEEPS_PORT in the place of PATH_LIVE, so the fast
 * path, which reads no more than before, takes the backend for gone and leaves the packet to the slow path. */
#define PATH_META_STORED(path) RD64((u8 *)(path) + __builtin_offsetof(lb_path, port))
#define META_PORT(m) ((u16)(m)) /* network order; 0: meta_port() */
#define META_GEN(m) ((u64)(m) >> 16 & 0xff)
#define META_IS(m, flag) ((u64)(m) >> 24 & (flag))
#define META_L4_SHIFT (24 + PATH_L4_SHIFT)
#define META_NEXTHOP(m) ((u64)(m) >> 32 & (NEXTHOPS - 1))
#define META_EXTRA_SNAT_SHIFT (32 + PATH_EXTRA_SNAT_SHIFT)
#define META_EXTRA_SNAT(m) ((u64)(m) >> META_EXTRA_SNAT_SHIFT & 7) /* number of the source address; 0: the first */
#define META_KEEPS_PORT(m) ((u64)(m) >> (32 + PATH_KEEPS_PORT_SHIFT) & 1) /* 1: it exists, and packets keep their destination port */
#define META_MTU(m) ((u64)(m) >> 48)

/* Are there extra SNAT addresses? A constant for the verifier, which removes the code under it if there are none. */
#define EXTRA_SNAT_SOURCES (CFG(extra_snat_stride) != 0)

AI lb_path *path_at(u64 index)
{
	return (lb_path *)(FAMILY_VAL(path) + index * sizeof(lb_path));
}

AI lb_path *path_of(u64 backend)
{
	return path_at(backend & CFG(path_mask));
}

/* The meta word off the fast path: PATH_LIVE is set for each backend that exists. Without a branch: the verifier counts paths. */
AI u64 path_meta(const lb_path *path)
{
	u64 meta = PATH_META_STORED(path);

	return meta | META_KEEPS_PORT(meta) << 24;
}

#define PATH_META(path) path_meta(path)

_Static_assert(PATH_LIVE == 1 && MAX_EXTRA_SNAT < 8, "the bits that path_meta() and META_EXTRA_SNAT() use");

/* Returns the port at which the backend gets packets of a flow to this port of its frontend, network order. Also for the record of a
 * removed backend: its flows have SNAT slots. Without a branch. */
AI u16 meta_port(u64 meta, u16 frontend_port)
{
	return META_PORT(meta) | (frontend_port & (u16)-SIGN((u64)META_PORT(meta) - 1));
}

AI void path_addr(const lb_path *path, lb_addr *a)
{
	addr_load(a, &path->address);
}

AI void path_snat(const lb_path *path, lb_addr *a)
{
	addr_load(a, &path->snat);
}

/* Is `from` the backend, and `to` the address from which this node talks to it? They are adjacent in the record. */
AI bool path_between(const lb_path *path, const lb_addr *from, const lb_addr *to)
{
	const u64 *ends = (const u64 *)path;

#if LB_FAMILY == 4
	return *ends == (from->w[0] | (u64)to->w[0] << 32);
#else
	return !((ends[0] ^ from->w[0]) | (ends[1] ^ from->w[1]) | (ends[2] ^ to->w[0]) | (ends[3] ^ to->w[1]));
#endif
}

_Static_assert(__builtin_offsetof(lb_path, snat) == sizeof(lb_addr), "address and snat lie side by side");

/* Returns the backend's protocol, enum l4. */
AI u64 path_l4(u64 meta)
{
	return meta >> META_L4_SHIFT & L4_BITS;
}

/* Is it the backend's protocol? */
AI bool path_carries(u64 meta, u8 proto)
{
	return !((meta ^ L4_FIELD(proto, META_L4_SHIFT)) & L4_BITS << META_L4_SHIFT);
}

/* Is `other` the record of the same backend with source address `number`, and may a new flow take it? */
AI bool path_is_extra_snat(const lb_path *path, const lb_path *other, u64 number)
{
	u64 meta = PATH_META(path), next = PATH_META(other), differs;
	lb_addr a, b;

	path_addr(path, &a);
	path_addr(other, &b);
	differs = (META_PORT(meta) ^ META_PORT(next)) | (path_l4(meta) ^ path_l4(next)) | (META_EXTRA_SNAT(next) ^ number);
	return !differs && META_IS(next, PATH_LIVE) && META_IS(next, PATH_SELECTABLE) && addr_eq(&a, &b);
}

/* Returns the id of the record with the next source address that a new flow to the backend of record `id` may take; 0: none is left. */
AI u64 path_next_source(u64 id)
{
	lb_path *path = path_of(id);
	u64 number = META_EXTRA_SNAT(PATH_META(path)), found = 0;

	if (!EXTRA_SNAT_SOURCES)
		return 0;
	NO_UNROLL
	for (u64 n = MAX_EXTRA_SNAT; n > 0; n--) {
		u64 next = (id + n * CFG(extra_snat_stride)) & CFG(path_mask);

		if (path_is_extra_snat(path, path_at(next), number + n))
			found = next;
	}
	return found;
}

/* Is a datagram of `len` bytes too long for an MTU (0: unknown)? */
AI bool over_mtu(u64 len, u64 mtu)
{
	return UNLIKELY(len > mtu) && mtu;
}

/* Both MACs and the device, as they lie in lb_nexthop. */
struct nexthop {
	u64 macs; /* destination, first 2 bytes of the source */
	u64 rest; /* last 4 bytes of the source, ifindex 31, NEXTHOP_NO_XDP 1 */
};

AI void nexthop_read(u64 index, struct nexthop *nh)
{
	u64 *at = (u64 *)((u8 *)MAPVAL(lb_nexthop) + (index & (NEXTHOPS - 1)) * sizeof(struct lb_nexthop));

	nh->macs = RD64(at);
	nh->rest = RD64(at + 1);
}
