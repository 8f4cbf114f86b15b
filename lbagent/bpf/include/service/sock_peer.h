/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains what is kept of a socket (lb{4,6}_sock, by its cookie): which frontend a backend's address stands for, and which
 * backend an unconnected socket talks to behind a frontend. The map forgets what was not used for longest (LRU); a cookie is never
 * given again, so nothing that is left can be taken for another socket's.
 */
#pragma once
#include "path.h"

typedef struct FAMILY(sock_key) lb_sock_key;
typedef struct FAMILY(sock_value) lb_sock_value;

AI void sock_key(lb_sock_key *key, u64 cookie, const lb_addr *a, __be16 port, u8 kind)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->cookie = cookie;
	addr_store(&key->address, a);
	key->port = port;
	key->kind = kind;
}

AI lb_sock_value *sock_find(u64 cookie, const lb_addr *a, __be16 port, u8 kind)
{
	lb_sock_key key;

	sock_key(&key, cookie, a, port, kind);
	return map_lookup(FAMILY_FD(sock), &key);
}

AI void sock_put(u64 cookie, const lb_addr *at, __be16 at_port, u8 kind, u64 backend, const lb_addr *a, __be16 port)
{
	lb_sock_value value = {};
	lb_sock_key key;

	sock_key(&key, cookie, at, at_port, kind);
	addr_store(&value.address, a);
	value.port = port;
	value.backend_gen = META_GEN(PATH_META(path_of(backend)));
	value.backend_id = backend;
	value.seen = whole_ticks();
	map_update(FAMILY_FD(sock), &key, &value, 0);
}

/* Returns the backend that an unconnected socket talks to; 0: none, it is gone, or the conversation rested so long that it is over,
 * as a flow of UDP would be. */
AI u64 sock_backend(lb_sock_value *value)
{
	u64 now = whole_ticks(), meta;

	if (!value)
		return 0;
	meta = PATH_META(path_of(value->backend_id));
	if (!META_IS(meta, PATH_LIVE) || META_GEN(meta) != value->backend_gen || (u32)(now - value->seen) > CFG(timeout_udp))
		return 0;
	value->seen = now;
	return value->backend_id;
}
