"""A stub that stands in for Neutron's API; it is not a network service.

Nova asks the network endpoint for ports and quotas even when a server has no network at all. Every
server of this cloud is booted with ``--nic none``, so empty lists answer all of Nova's questions,
and running Neutron would cost start-up time and memory for nothing. Whatever would change
something is refused.
"""

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

QUOTAS = ("port", "network", "security_group", "security_group_rule", "floatingip")


def error(kind: str, message: str) -> dict[str, Any]:
    """An error body in Neutron's form."""
    return {"NeutronError": {"type": kind, "message": message, "detail": ""}}


def answer(path: str, base: str) -> tuple[int, dict[str, Any]]:
    """Status and body for a GET of `path`; `base` is the address the client used."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        links = [{"rel": "self", "href": f"{base}/v2.0/"}]
        return 200, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": links}]}
    if parts[0] == "v2.0":
        if len(parts) == 1:
            return 200, {"resources": []}
        if len(parts) == 2:
            return 200, {parts[1].removesuffix(".json").replace("-", "_"): []}
        if parts[1] == "quotas":
            return 200, {"quota": dict.fromkeys(QUOTAS, -1)}
    return 404, error("NotFound", f"no {path}")


class Handler(BaseHTTPRequestHandler):
    """Answers Nova's questions with nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(*answer(urlsplit(self.path).path, f"http://{self.headers['Host']}"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._reply(403, error("HTTPForbidden", "there is no network service in this cloud"))

    do_PUT = do_DELETE = do_POST

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        print(self.log_date_time_string(), format % args, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()


if __name__ == "__main__":
    main()
