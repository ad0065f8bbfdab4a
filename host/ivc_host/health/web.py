"""JSON by HTTP: what may go wrong is told in a line that names the address."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from .contract import HealthError
from .settings import secret

#: An answer may not be longer.
_MAX_BYTES = 32 << 20


class Web:
    """One server, and who we are to it."""

    def __init__(
        self,
        url: str,
        *,
        user: str = "",
        password_file: str = "",
        token_file: str = "",
        ca_file: str = "",
        timeout: float = 30.0,
    ) -> None:
        self.url = url.rstrip("/")
        headers, auth = {}, None
        if token_file:
            headers["Authorization"] = f"Bearer {secret(token_file, self.url)}"
        elif user:
            password = secret(password_file, self.url) if password_file else ""
            auth = httpx.BasicAuth(user, password)
        try:
            verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
            self._client = httpx.AsyncClient(
                headers=headers, auth=auth, verify=verify, timeout=timeout
            )
        except OSError as fault:
            raise HealthError(f"{self.url}: cannot read {ca_file}: {fault.strerror}") from None

    async def __aenter__(self) -> Web:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str, **query: str) -> Any:
        """The JSON that is there."""
        where = f"{self.url}{path}"
        try:
            async with self._client.stream("GET", where, params=query or None) as answer:
                body = await self._body(answer, where)
        except httpx.TimeoutException:
            raise HealthError(f"{where}: no answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            raise HealthError(f"{where}: {fault or type(fault).__name__}") from None
        if answer.status_code in (401, 403):
            raise HealthError(
                f"{where}: it does not let us in ({answer.status_code})",
                hint="look at user, password_file and token_file in guard.toml",
            )
        try:
            data = json.loads(body)
        except ValueError:
            raise HealthError(f"{where}: status {answer.status_code}, and no JSON") from None
        if answer.is_error:
            raise HealthError(f"{where}: status {answer.status_code}: {_said(data)}")
        return data

    @staticmethod
    async def _body(answer: httpx.Response, where: str) -> bytes:
        parts, size = [], 0
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > _MAX_BYTES:
                raise HealthError(f"{where}: the answer is longer than {_MAX_BYTES >> 20} MiB")
        return b"".join(parts)


def _said(data: Any) -> str:
    """The server's own words, where they are where most servers have them."""
    if isinstance(data, Mapping):
        for key in ("error", "message"):
            if isinstance(data.get(key), str):
                return str(data[key])
    return "without a reason"
