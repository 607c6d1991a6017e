"""A provider of models outside the fleet, for tests: it answers every request with what it was asked.

python -m tests.integration.provider PORT NAME [CERTIFICATE-WITH-KEY]
"""

from __future__ import annotations

import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Echo(BaseHTTPRequestHandler):
    """Says who it is, and which path and headers have arrived."""

    name = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"provider": self.name, "path": self.path, "headers": dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        pass


def main() -> None:
    port, Echo.name, *certificates = sys.argv[1:]
    server = ThreadingHTTPServer(("0.0.0.0", int(port)), Echo)  # noqa: S104 - in the fleet's own network
    for certificate in certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print("ready", flush=True)  # noqa: T201 - whoever started it waits for this
    server.serve_forever()


if __name__ == "__main__":
    main()
