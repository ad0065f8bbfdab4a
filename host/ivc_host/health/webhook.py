"""The receiver of Alertmanager's webhook (its JSON of version 4)."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from ..errors import UsageError
from .contract import HealthError

_MAX_BYTES = 4 << 20
_SECONDS = 10.0

Take = Callable[[Sequence[Any]], str]


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"cannot listen on {text!r}", hint="write ADDRESS:PORT")
    return host.strip("[]"), int(port)


def alerts_of(body: bytes) -> list[Any]:
    """The alerts of a message; HealthError when it is none."""
    try:
        data = json.loads(body)
    except ValueError:
        raise HealthError("not JSON") from None
    found = data.get("alerts") if isinstance(data, dict) else None
    if not isinstance(found, list):
        raise HealthError("no list of alerts: is it Alertmanager's webhook?")
    return found


def server(where: tuple[str, int], token: str, take: Take) -> HTTPServer:
    """Listening; TAKE is called with the alerts of each message, and says what is printed."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS

        def do_POST(self) -> None:
            given = self.headers.get("Authorization", "")
            if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                self._answer(401, "the token is missing or wrong")
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > _MAX_BYTES:
                self._answer(413, f"a message has a length, of at most {_MAX_BYTES >> 20} MiB")
                return
            try:
                said = take(alerts_of(self.rfile.read(int(length))))
            except HealthError as fault:
                self._answer(400, str(fault))
                return
            self._answer(200, said)

        def _answer(self, code: int, text: str) -> None:
            if code != 200 or text:
                print(f"{self.client_address[0]}: {text}", flush=True)
            body = f"{text}\n".encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    try:
        return HTTPServer(where, Handler)
    except OSError as fault:
        raise HealthError(
            f"cannot listen on {where[0]}:{where[1]}: {fault.strerror}",
            hint="name another address with --listen",
        ) from None
