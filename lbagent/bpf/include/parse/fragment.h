/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the fragment map: it keeps a first fragment's ports under (source, destination, identification, protocol) for
 * the later fragments. An LRU map: entries that are not looked up are evicted.
 */
#pragma once
#include "maps.h"
#include "parse.h"
#include "service.h"

/* Fields of the IP headers beyond the packet record. */
struct ip_info {
	u64 id;        /* of the datagram, as loaded */
	bool more;     /* more fragments follow */
	bool unsupported;  /* something that lbagent does not translate */
};

AI void frag_key(const struct lb_pkt *pk, const struct ip_info *info, struct FAMILY(frag_key) *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	addr_store(&key->saddr, &pk->saddr);
	addr_store(&key->daddr, &pk->daddr);
	key->id = info->id;
	key->proto = pk->proto;
}

/* Ports of a later fragment. Returns false if the first one was not seen. */
AI bool frag_ports(struct lb_pkt *pk, const struct ip_info *info)
{
	struct FAMILY(frag_key) key;
	struct lb_frag_value *v;

	frag_key(pk, info, &key);
	v = map_lookup(FAMILY_FD(frag), &key);
	if (!v)
		return false;
	pk->sport = v->sport;
	pk->dport = v->dport;
	return true;
}

AI void frag_remember(const struct lb_pkt *pk, const struct ip_info *info)
{
	struct FAMILY(frag_key) key;
	struct lb_frag_value v = {pk->sport, pk->dport};

	frag_key(pk, info, &key);
	map_update(FAMILY_FD(frag), &key, &v, 0);
}

/* Is the later fragment of an unknown datagram certainly for a service? Only a ClusterIP is a service for every port, and a set bit
 * of the prefilter proves nothing. The node's own datagrams may be out of order: its stack waits for the first fragment, these
 * programs do not. */
AI bool frag_is_lost(const struct lb_pkt *pk)
{
	struct lb_tuple5 t = {};

	if (pk->concern & CONCERN_SNAT || !(pk->concern & CONCERN_VIP))
		return false;
	t.frontend = pk->daddr;
	return service_wildcard(&t) != 0;
}
