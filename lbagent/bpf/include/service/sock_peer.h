/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the state of a socket, by its cookie: the frontend that a backend's address stands for, and the backend that
 * an unconnected socket uses behind a frontend. A cookie is never reused, so stale state cannot match another socket. UDP state is
 * in lb{4,6}_sock, an LRU map. A TCP socket has one peer: its record is in an array (lb{4,6}_stream), indexed by the cookie, as a
 * new entry of an LRU map costs half of what lbagent adds to a connect.
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

typedef struct FAMILY(stream) lb_stream;

/* Cookies are consecutive, so a record is reused after STREAMS further sockets. */
AI lb_stream *stream_of(u64 cookie)
{
	return (lb_stream *)(FAMILY_VAL(stream) + (cookie & (STREAMS - 1)) * sizeof(lb_stream));
}

/* Stores the frontend that the socket's peer stands for. Meanwhile the record belongs to no socket. */
AI void stream_put(u64 cookie, const lb_addr *peer, __be16 peer_port, const lb_addr *a, __be16 port)
{
	lb_stream *record = stream_of(cookie);

	WR64(&record->cookie, 0);
	addr_store(&record->peer, peer);
	addr_store(&record->address, a);
	record->peer_port = peer_port;
	record->port = port;
	MB();
	WR64(&record->cookie, cookie);
}

/* Replaces the peer of a socket by its frontend. Returns false if it stands for none. */
AI bool stream_show(u64 cookie, lb_addr *peer, __be16 *peer_port)
{
	lb_stream *record = stream_of(cookie);
	lb_addr at, frontend;
	__be16 port;

	if (RD64(&record->cookie) != cookie || record->peer_port != *peer_port)
		return false;
	addr_load(&at, &record->peer);
	addr_load(&frontend, &record->address);
	port = record->port;
	MB();
	if (!addr_eq(&at, peer) || RD64(&record->cookie) != cookie) /* another socket took the record meanwhile */
		return false;
	*peer = frontend;
	*peer_port = port;
	return true;
}

/* Returns the backend that an unconnected socket uses; 0: none, it is gone, or the conversation has expired, as a UDP flow would. */
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
