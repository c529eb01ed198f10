"""A search index over HTTP whose archive is on a slow disk: `GET /search?q=...` gives three passages as JSON.

A query that mentions the archive takes three seconds; any other twenty milliseconds. Standard library only.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

FAST_S = 0.02
SLOW_S = 3.0


class Search(BaseHTTPRequestHandler):
    """One query."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Search, and take one's time over the archive."""
        query = parse_qs(urlsplit(self.path).query).get("q", [""])[0]
        time.sleep(SLOW_S if "archive" in query else FAST_S)
        passages = [f"Passage {number} about {query}: " + "it depends. " * 12 for number in range(1, 4)]
        body = json.dumps(passages).encode()
        try:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            pass  # the service's budget was over, and it has hung up

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        """Say nothing of each query."""


class Index(ThreadingHTTPServer):
    """One thread a connection."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serve on the port given, or a free one; the first line says where."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = Index(("127.0.0.1", port), Search)
    sys.stdout.write(json.dumps({"ready": True, "url": f"http://127.0.0.1:{server.server_address[1]}"}) + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
