"""The HTTP side of one engine: its address, control calls, and what a failure of one says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import aiohttp
import orjson

from asyncrl.errors import EngineError, EngineFault, RequestFailed
from asyncrl.scrub import hide

JSON = {"Content-Type": "application/json"}


def make_session() -> aiohttp.ClientSession:
    """Return the one HTTP session that all clients of a process share. Close it after them.

    No limit on connections: the scheduler bounds the requests in flight. Idle connections are given up before a server
    (5 s for SGLang's) does so, else a request could be sent into a connection that is just being closed.
    """
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=4.0, ttl_dns_cache=300)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=2**18,
    )


class Connection:
    """One server's address.

    Args:
        name: of the engine, for messages.
        url: base address, such as ``http://127.0.0.1:30000``.
        session: from `make_session`.
        api_key: what its requests carry; '' for nothing.

    Attributes:
        secrets: what no message of an error quotes, whatever the server says.
    """

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession, api_key: str = "") -> None:
        self.name = name
        self.url = url
        self.session = session
        self.headers = {**JSON, **bearer(api_key)}
        self.secrets: Collection[str] = [api_key] if api_key else []

    async def call(
        self, path: str, body: Mapping[str, Any] | None, timeout: float, method: Literal["GET", "POST", "DELETE"] = "POST"
    ) -> dict[str, Any]:
        """Make one control call; a server's JSON object or plain text comes back as a dict.

        Raises:
            EngineFault: no answer, or one that another try may cure.
            EngineError: the server refused.
        """
        data = None if body is None else orjson.dumps(body)
        try:
            async with self.session.request(
                method,
                f"{self.url}{path}",
                data=data,
                headers=self.headers,
                timeout=aiohttp.ClientTimeout(total=timeout),
                allow_redirects=False,
            ) as response:
                raw = await response.read()
                status = response.status
        except TimeoutError as cause:
            raise self.fault(f"{path} got no answer within {timeout:g} s", cause) from cause
        except (aiohttp.ClientError, OSError) as cause:
            raise self.fault(f"{path} failed: {words(cause)}", cause) from cause
        if not 200 <= status < 300:
            raise self.refusal(path, status, raw)
        try:
            reply = orjson.loads(raw)
        except ValueError:
            return {"message": raw.decode(errors="replace")}
        if not isinstance(reply, dict):
            return {"message": reply}
        if reply.get("success") is False:
            raise EngineError(hide(f"{path} was refused: {reply.get('message', reply)}", self.secrets), origin=self.name)
        return reply

    def fault(self, message: str, cause: BaseException) -> EngineFault:
        """Return the error for a call that got no answer."""
        fault = EngineFault(hide(message, self.secrets), origin=self.name)
        fault.unreachable = isinstance(cause, aiohttp.ClientConnectorError | ConnectionRefusedError)
        return fault

    def refusal(self, path: str, status: int, raw: bytes) -> EngineError:
        """Return the error for an answer with a status that is no success."""
        told = hide(raw.decode(errors="replace"), self.secrets)[:500].strip() or "no message"
        if status >= 500 or status in (408, 429):
            return EngineFault(f"{path} answered {status}: {told}", origin=self.name)
        kind = RequestFailed if path == "/generate" else EngineError
        return kind(f"{path} was refused with {status}: {told}", origin=self.name)


def bearer(api_key: str) -> dict[str, str]:
    """Return the header that carries a server's key; none for ''."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def words(cause: BaseException) -> str:
    """Return an error in words, with its class."""
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
