"""Recognize addresses that lead inside a network, in every notation, for users' endpoints and sources of weights.

The hydrator imports this module and no other one of the operator.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address

# Metadata services of clouds, besides the link-local addresses.
METADATA: Final = tuple(
    map(
        ip_network,
        ("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::/32"),
    )
)
# IPv6 ranges that embed an IPv4 address, which is then the one to check.
_CARRIERS: Final = tuple(map(ip_network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
# RFC 8215's range for local translation. Only the network knows which bits embed the other address.
TRANSLATED: Final = ip_network("64:ff9b:1::/48")
_THIS_NETWORK: Final = ip_network("0.0.0.0/8")


def embedded_addresses(address: Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address embeds: mapped, 6to4, Teredo and NAT64."""
    if isinstance(address, IPv4Address):
        return ()
    inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in carrier for carrier in _CARRIERS):
        inside.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return tuple(inner for inner in inside if inner is not None)


def on_own_machine(address: Address) -> bool:
    """True if the address belongs to the machine that connects to it."""
    return address.is_loopback or address.is_unspecified or address in _THIS_NETWORK


def special(address: Address) -> str:
    """Return a description of an address that leads to no other machine; empty for ordinary addresses."""
    if on_own_machine(address):
        return "the gateway's own machine"
    if address.is_link_local:
        return "link-local, which is where a cloud's metadata is"
    if address.is_multicast:
        return "a multicast address"
    if address.is_reserved and not isinstance(address, IPv6Address):
        return "a reserved address"
    return ""


def tells_secrets(address: Address) -> bool:
    """True if clouds serve metadata and secrets at this address."""
    return any(address in network for network in METADATA)
