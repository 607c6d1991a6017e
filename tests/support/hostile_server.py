"""An API server that sends whatever costs its clients most: a process of its own, whose CPU time is not theirs.

    python -m tests.support.hostile_server KIND

It writes one line of JSON: its address, and the authority of its certificate.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from subprocess import PIPE, Popen

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kubeloop.client import http2_frames as http2
from kubeloop.client import http2_headers
from kubeloop.client.access import Access
from kubeloop.client.http2_frames import FrameType

PEM = Encoding.PEM
BEGUN = http2.frame(
    FrameType.HEADERS, http2_headers.write_block([(":status", "200")]), flags=http2.END_HEADERS, stream=1
)
SETTINGS = b"".join(number.to_bytes(2) + b"\0\0\x40\0" for number in (4, 5, 6, 0x99) * 8)
FLOODS: Mapping[str, tuple[bytes, bytes]] = {
    "settings": (b"", http2.frame(FrameType.SETTINGS, SETTINGS) * 100),
    "pings": (b"", http2.frame(FrameType.PING, b"\0" * 8) * 100),
    "one byte a frame": (BEGUN, http2.frame(FrameType.DATA, b" ", stream=1) * 999),
    "one byte a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 2000),
}
"""What is sent to a client that asks: how it begins, and how it goes on without end."""
KINDS = ("a long chain", *FLOODS)


async def main(kind: str) -> None:
    logging.disable()
    tls, authority = _certified(90 if kind == "a long chain" else 1)
    begins, goes_on = FLOODS.get(kind, (b"", b""))
    tls.set_alpn_protocols(["http/1.1"] if begins.startswith(b"HTTP") else ["h2"])

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")  # of HTTP/1.1, or of what HTTP/2 begins with
            writer.write(b"" if begins.startswith(b"HTTP") else http2.settings({}))
            await asyncio.sleep(0.05)  # so that the request is there, too
            writer.write(begins)
            while goes_on and not writer.is_closing():
                writer.write(goes_on)
                await writer.drain()
                await asyncio.sleep(0)  # draining takes no turn while there is room
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"server": f"https://127.0.0.1:{port}", "authority": authority}) + "\n")
    sys.stdout.flush()
    await server.serve_forever()


def _certified(length: int) -> tuple[ssl.SSLContext, str]:
    """Return what the server shows, a chain of so many certificates, and the authority at its end."""
    key, began = ec.generate_private_key(ec.SECP521R1()), datetime.datetime.now(datetime.UTC)

    def name(number: int) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ca {number}")])

    chain = list[bytes]()
    for number in range(length + 1):
        made = (
            x509.CertificateBuilder()
            .subject_name(name(number))
            .issuer_name(name(max(number - 1, 0)))
            .public_key(key.public_key())
            .serial_number(number + 1)
            .not_valid_before(began - datetime.timedelta(days=1))
            .not_valid_after(began + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=number < length, path_length=None), critical=True)
        )
        if number == length:
            address = x509.IPAddress(ip_address("127.0.0.1"))
            made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        chain.append(made.sign(key, SHA512()).public_bytes(PEM))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(
            b"".join(reversed(chain[1:])) + key.private_bytes(PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        tls.load_cert_chain(file.name)
    return tls, chain[0].decode()


@contextmanager
def hostile(kind: str) -> Iterator[Access]:
    """A server of that kind, ended with the block."""
    with Popen([sys.executable, "-m", "tests.support.hostile_server", kind], stdout=PIPE) as process:
        try:
            assert process.stdout is not None
            yield Access(**json.loads(process.stdout.readline()))
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
