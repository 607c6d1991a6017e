"""Addresses that lead inside, in whichever way they are written: of users' endpoints and of sources of weights.

The hydrator is a program of its own, which imports nothing else of the operator.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address

# Where clouds tell machines who they are, besides the link-local addresses.
METADATA: Final = tuple(
    map(
        ip_network,
        ("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::/32"),
    )
)
# Addresses that carry another one: what counts is the one inside.
_CARRIERS: Final = tuple(map(ip_network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
# By RFC 8215 for a network's own translation: which bits carry the other address is that network's to know.
TRANSLATED: Final = ip_network("64:ff9b:1::/48")
_THIS_NETWORK: Final = ip_network("0.0.0.0/8")


def carried(address: Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address stands for: mapped, of 6to4, of Teredo, of NAT64."""
    if isinstance(address, IPv4Address):
        return ()
    inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in carrier for carrier in _CARRIERS):
        inside.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return tuple(inner for inner in inside if inner is not None)


def on_own_machine(address: Address) -> bool:
    """True if it is the machine's that dials it."""
    return address.is_loopback or address.is_unspecified or address in _THIS_NETWORK


def special(address: Address) -> str:
    """Return what an address is that leads to no other machine; empty where it may."""
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
    """True if a cloud tells machines their secrets there."""
    return any(address in network for network in METADATA)
