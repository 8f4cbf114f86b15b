/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * This file contains the wire formats: lengths, field offsets (bytes from the start of their header) and numbers of Ethernet, IPv4,
 * IPv6, TCP, UDP, SCTP and ICMP. Numbers of two bytes that are compared with a field as loaded from memory are in network byte order
 * (HTONS).
 */
#pragma once

#define HTONS(x) ((u16)((((x) & 0xff) << 8) | (((x) >> 8) & 0xff)))
#define NTOHS(x) HTONS(x)
#define HTONL(x) ((u32)__builtin_bswap32((u32)(x)))

/* Ethernet (IEEE 802.3) and VLAN tags (IEEE 802.1Q). A tag stands between the MAC addresses and the type. */
#define ETH_DMAC 0
#define ETH_SMAC 6
#define ETH_TYPE 12
#define ETH_HLEN 14
#define VLAN_HLEN 4 /* bytes of a tag */
#define ETH_IP4 HTONS(0x0800)
#define ETH_IP6 HTONS(0x86dd)
#define ETH_ARP HTONS(0x0806)
#define ETH_VLAN HTONS(0x8100)
#define ETH_QINQ HTONS(0x88a8)
#define MAC_SIZE 6
#define MAC_GROUP 1 /* bit of a MAC address's first byte: broadcast or multicast */

/* IPv4 (RFC 791). */
#define IP4_LEN 2 /* total length */
#define IP4_ID 4
#define IP4_FRAGMENT 6 /* flags and fragment offset */
#define IP4_TTL 8
#define IP4_PROTO 9
#define IP4_CSUM 10
#define IP4_SADDR 12
#define IP4_DADDR 16
#define IP4_HLEN 20           /* without options */
#define IP4_VERSION_HLEN 0x45 /* the first byte of a header without options */
#define IP4_HEADER_BYTES(l3) ((u64)(*(l3) & 15) << 2)
#define IP4_DF HTONS(0x4000)
#define IP4_MORE_FRAGMENTS HTONS(0x2000)
#define IP4_FRAGMENT_OFFSET HTONS(0x1fff)

/* IPv6 (RFC 8200) and its extension headers, which begin with the next header's number and their own length. */
#define IP6_PAYLOAD_LEN 4
#define IP6_NEXT_HEADER 6
#define IP6_HOP_LIMIT 7
#define IP6_SADDR 8
#define IP6_DADDR 24
#define IP6_HLEN 40
#define NH_HOP_BY_HOP 0
#define NH_ROUTING 43
#define NH_FRAGMENT 44
#define NH_AUTH 51
#define NH_DEST_OPTIONS 60
#define EXT_HLEN 1                 /* length field: units of 8 bytes beyond the first 8 (AH: of 4 bytes beyond the first 8) */
#define EXT_MIN_HLEN 8             /* bytes of the shortest extension header, and of a fragment header */
#define EXT_ROUTING_SEGMENTS_LEFT 3
#define EXT_FRAGMENT 2 /* fragment offset and flags */
#define EXT_FRAGMENT_ID 4
#define EXT_MORE_FRAGMENTS HTONS(1)
#define EXT_FRAGMENT_OFFSET HTONS(0xfff8)

/* The header of the family that is compiled. */
#if LB_FAMILY == 4
#define ETH_FAMILY ETH_IP4
#define IP_HLEN IP4_HLEN
#define IP_TTL IP4_TTL
#define IP_PROTO IP4_PROTO
#define IP_SADDR IP4_SADDR
#define IP_DADDR IP4_DADDR
#define PROTO_ICMP_FAMILY PROTO_ICMP
#else
#define ETH_FAMILY ETH_IP6
#define IP_HLEN IP6_HLEN
#define IP_TTL IP6_HOP_LIMIT
#define IP_PROTO IP6_NEXT_HEADER
#define IP_SADDR IP6_SADDR
#define IP_DADDR IP6_DADDR
#define PROTO_ICMP_FAMILY PROTO_ICMP6
#endif

#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_ICMP6 58
#define PROTO_SCTP 132

/* TCP (RFC 9293) and UDP (RFC 768): ports are at the same place. */
#define L4_SPORT 0
#define L4_DPORT 2
#define L4_QUOTED_HLEN 8 /* bytes of an L4 header that an ICMP error quotes at least (RFC 792) */
#define TCP_SEQ 4
#define TCP_ACK_SEQ 8
#define TCP_DATA_OFFSET 12 /* upper half: header length in words of 4 bytes */
#define TCP_HEADER_BYTES(l4) ((u64)((l4)[TCP_DATA_OFFSET] >> 4) << 2)
#define TCP_FLAGS 13
#define TCP_CSUM 16
#define TCP_HLEN 20 /* without options */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define UDP_CSUM 6
#define UDP_HLEN 8

/* SCTP (RFC 9260): a common header, then chunks. Ports are at the place of TCP's. */
#define SCTP_TAG 4  /* verification tag */
#define SCTP_CSUM 8 /* CRC32c of the whole packet */
#define SCTP_HLEN 12
#define SCTP_CHUNK_HLEN 4
#define SCTP_CHUNK_FLAGS 1
#define SCTP_CHUNK_LEN 2
#define SCTP_MIN_HLEN (SCTP_HLEN + SCTP_CHUNK_HLEN) /* bytes up to the end of the first chunk's header */
#define SCTP_INIT 1
#define SCTP_INIT_ACK 2
#define SCTP_ABORT 6
#define SCTP_SHUTDOWN_ACK 8
#define SCTP_ERROR 9
#define SCTP_COOKIE_ECHO 10
#define SCTP_COOKIE_ACK 11
#define SCTP_SHUTDOWN_COMPLETE 14
#define SCTP_TAG_REFLECTED 1 /* bit T: the verification tag is the one that the other side would send */
#define SCTP_INITIATE_TAG (SCTP_HLEN + 4) /* of INIT and INIT ACK, from the common header */
#define SCTP_INIT_HLEN 20                 /* bytes of an INIT chunk before its parameters */
#define SCTP_PARAM_LEN 2
#define SCTP_PARAM_HLEN 4
#define SCTP_PARAM_IP4 HTONS(5)
#define SCTP_PARAM_IP6 HTONS(6)
#define SCTP_PARAM_HOST_NAME HTONS(11)

/* ICMP (RFC 792) and ICMPv6 (RFC 4443). */
#define ICMP_TYPE 0
#define ICMP_CSUM 2
#define ICMP_REST 4 /* the MTU of "too big" */
#define ICMP_HLEN 8
#define ICMP_ECHO_REQUEST (LB_FAMILY == 4 ? HTONS(0x0800) : HTONS(0x8000)) /* type, code */
#define ICMP_ECHO_REPLY (LB_FAMILY == 4 ? HTONS(0) : HTONS(0x8100))

/* ARP of Ethernet and IPv4 (RFC 826). */
#define ARP_SIZES 4 /* sizes of both kinds of addresses, and the operation */
#define ARP_OPERATION 6
#define ARP_SENDER_MAC 8
#define ARP_SENDER_ADDR 14
#define ARP_TARGET_MAC 18
#define ARP_TARGET_ADDR 24
#define ARP_HLEN 28
#define ARP_ETHERNET_IP4 HTONL(0x00010800)
#define ARP_REQUEST HTONL(0x06040001) /* including the sizes */
#define ARP_REPLY HTONS(2)

/* Neighbor discovery (RFC 4861). */
#define NEIGHBOR_SOLICITATION HTONS(0x8700)  /* type, code */
#define NEIGHBOR_ADVERTISEMENT HTONS(0x8800) /* type, code */
#define NEIGHBOR_TARGET 8
#define NEIGHBOR_HLEN 24
#define NEIGHBOR_OPTION 8     /* bytes of a link-layer address option */
#define NEIGHBOR_HOPS 255     /* no router lets such a packet through */
#define NEIGHBOR_SOLICITED HTONL(0x40000000)
#define NEIGHBOR_OVERRIDE HTONL(0x20000000)
#define OPTION_TARGET_MAC HTONS(0x0201) /* type, length in units of 8 bytes */
