/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the service of a new flow: look-up (exact, then ranges of ports, then the address's wildcard entry), scope, source ranges. Verdicts
 * are REASON_*; 0 means continue. Slot 0 of lb{4,6}_service is the master entry, slots 1..count the backends. It takes a tuple, no
 * packet, so that a socket program can use it (tests/bpf/compiler/test_headers.py).
 */
#pragma once
#include "maps.h"
#include "wire.h"

/* The tuple of a new flow: all inputs of the service look-up and of the backend selection. */
struct lb_tuple5 {
	lb_addr client, frontend;
	__be16 client_port, frontend_port;
	u8 proto;
	u8 scope; /* SCOPE_*: the side of the node from which it comes */
	u8 from_pod; /* 1: received by a --pod-device; 0: by another device, or sent by the node itself */
	u8 from_netns; /* 1: `client` is the cookie of a network namespace, as a socket has no address yet; 0: an address */
};

/* struct FAMILY(key), each word of it stored whole: a helper that reads a word just written in parts waits for them. */
typedef struct {
	u64 words[(sizeof(struct FAMILY(key)) + 7) / 8];
} lb_key;

#define KEY_AT(field) __builtin_offsetof(struct FAMILY(key), field)

/* lb_service.flags and flags2: the service's 16 bits. Source: cilium bpf/lib/lb.h (behaviour). */
#define SVC_AFFINITY 0x10
#define SVC_ROUTABLE 0x40
#define SVC_SOURCE_RANGE 0x80
#define SVC2_LOCAL_REDIRECT 0x01
#define SVC2_L7 0x04
#define SVC2_LOOPBACK 0x08
#define SVC2_TWO_SCOPES 0x20
#define SVC2_RANGE_DENY 0x40
#define SCOPE_EXTERNAL 0
#define SCOPE_INTERNAL 1
#define SCOPE_FORWARDED 2 /* internal, but a hook has seen it where it came in: no local redirect applies any more */

#define ALGORITHM_MAGLEV 2
#define ALGORITHM_LEAST_CONN 3
#define SVC_ALGORITHM(svc) ((svc)->target >> TARGET_ALGORITHM_SHIFT & (TARGET_RULES - 1))
#define SVC_RULES(svc) ((svc)->target >> TARGET_ALGORITHM_SHIFT & TARGET_RULES) /* new flows: flow_rules.h */
#define SVC_AFFINITY_S(svc) ((svc)->target & 0xffffff)
#define SVC_PROXY_PORT(svc) ((svc)->target & 0xffff) /* with SVC2_L7, host order; 0: another data plane has the new flows */

/* Writes `value` to the bits of `mask`, from byte `at` on. */
AI void key_set(lb_key *key, u64 at, u64 mask, u64 value)
{
	u64 shift = at % 8 * 8, word = (key->words[at / 8] & ~(mask << shift)) | value << shift;

	OPAQUE(word); /* or the compiler stores only the part */
	key->words[at / 8] = word;
}

AI void service_key(const struct lb_tuple5 *t, u64 port, u64 proto, lb_key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->words[0] = t->frontend.w[0];
#if LB_FAMILY == 6
	key->words[1] = t->frontend.w[1];
#endif
	key_set(key, KEY_AT(dport), 0xffff, port);
	key_set(key, KEY_AT(proto), 0xff, proto);
}

/* Makes `key` that of the range of ports which has the packet's port. Returns false if no frontend of the address has one. */
AI bool service_range(const struct lb_tuple5 *t, lb_key *key)
{
	WORDS_OF(struct FAMILY(port_range_key)) range;
	struct lb_port_range *found;

	CLEAR(&range);
	range.is.prefixlen = PORT_RANGE_STATIC_BITS + ADDR_HALVES * 32 + 16;
	range.is.proto = t->proto;
	range.is.port = t->frontend_port;
	addr_store(&range.is.address, &t->frontend);
	found = map_lookup(FAMILY_FD(port_range), &range);
	if (LIKELY(!found))
		return false;
	key_set(key, KEY_AT(dport), 0xffff, found->first);
	key_set(key, KEY_AT(last_port), 0xffff, found->last);
	return true;
}

/* loadBalancerSourceRanges: in the list, or (deny) not in it. While a list changes from one kind to the other, its entries hold
 * their own verdict, so that no packet meets half of the change (targets/bpf/ranges.py). */
AI u32 service_source(const struct lb_tuple5 *t, const struct lb_service *svc)
{
	WORDS_OF(struct FAMILY(source_range_key)) key;
	u8 *found;

	if (LIKELY(!(svc->flags & SVC_SOURCE_RANGE)))
		return 0;
	CLEAR(&key);
	key.is.prefixlen = SOURCE_RANGE_STATIC_BITS + ADDR_HALVES * 32;
	key.is.rev_nat_index = svc->rev_nat_index;
	addr_store(&key.is.address, &t->client);
	found = map_lookup(FAMILY_FD(source_range), &key);
	if (UNLIKELY(found && *found >= SOURCE_RANGE_LETS_IN))
		return *found == SOURCE_RANGE_LETS_IN ? 0 : REASON_DROP_SOURCE_RANGE;
	return (found != 0) == !(svc->flags2 & SVC2_RANGE_DENY) ? 0 : REASON_DROP_SOURCE_RANGE;
}

/* Does the client use the original service, past the local redirect of `inner`? A packet does that passed where it came in (from
 * outside, or masqueraded since then), and the pods of a redirect with source ranges (skipRedirectFromBackend): the ranges are these
 * pods. A process has no address yet; its packets come later. */
AI bool service_skips(const struct lb_tuple5 *t, const struct lb_service *inner)
{
	if (LIKELY(!(inner->flags2 & SVC2_LOCAL_REDIRECT)))
		return false;
	return t->scope == SCOPE_FORWARDED || (!t->from_netns && service_source(t, inner));
}

/* Finds the master entry; leaves `key` with its ports and scope, ready for slots. A port of its own comes before a range. */
AI struct lb_service *service_lookup(const struct lb_tuple5 *t, lb_key *key)
{
	struct lb_service *svc, *inner;
	u64 scope = SCOPE_EXTERNAL;

	service_key(t, t->frontend_port, t->proto, key);
	svc = map_lookup(FAMILY_FD(service), key);
	if (!svc && service_range(t, key))
		svc = map_lookup(FAMILY_FD(service), key);
	if (svc && svc->flags2 & SVC2_TWO_SCOPES && t->scope != SCOPE_EXTERNAL) {
		key_set(key, KEY_AT(scope), 0xff, SCOPE_INTERNAL);
		inner = map_lookup(FAMILY_FD(service), key);
		if (inner && !service_skips(t, inner)) {
			svc = inner;
			scope = SCOPE_INTERNAL;
		}
	}
	FORGET(scope, key->words[0]);
	key_set(key, KEY_AT(scope), 0xff, scope);
	return svc;
}

/* Is the address a ClusterIP? Then this port certainly has no service. */
AI struct lb_service *service_wildcard(const struct lb_tuple5 *t)
{
	lb_key key;

	service_key(t, 0, 0, &key);
	return map_lookup(FAMILY_FD(service), &key);
}

/* May a packet from its side of the node use this frontend at all? */
AI u32 service_routable(const struct lb_tuple5 *t, const struct lb_service *svc)
{
	if (LIKELY(svc->flags & SVC_ROUTABLE))
		return 0;
	if (svc->flags2 & SVC2_LOOPBACK)
		return REASON_PASS_NOT_SERVICE; /* 127.0.0.1 and the like: not for packets from a device */
	if (t->scope == SCOPE_EXTERNAL && !(CFG(flags) & CONFIG_EXTERNAL_CLUSTERIP))
		return REASON_DROP_NOT_ROUTABLE;
	return 0;
}

/* Has the frontend of a flow been removed? `service`: its id, which is not reused soon. */
AI bool service_is_gone(u64 service)
{
	u64 id = (u32)service;
	struct FAMILY(reverse_nat) *r = map_lookup(FAMILY_FD(reverse_nat), &id);

	return id != SERVICE_NONE && (!r || !r->proto);
}

/* A frontend without a backend for new flows: rejected, or dropped where a Local policy leaves it to other nodes. */
AI u32 service_empty(const struct lb_service *svc)
{
	u64 id = NTOHS(svc->rev_nat_index);
	struct FAMILY(reverse_nat) *r = map_lookup(FAMILY_FD(reverse_nat), &id);

	return r && r->scope & REVNAT_NO_LOCAL_BACKEND ? REASON_DROP_NO_LOCAL_BACKEND : REASON_REJECT_NO_BACKEND;
}
