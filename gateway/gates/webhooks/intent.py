"""Verification of intent (WebSub, 5.3), and the end of a subscription that the gateway decides (5.2).

The receiver is asked by a GET of its URL with the parameters ``hub.*``. It agrees by an answer of 2xx whose body is the
challenge. So nobody can have notifications sent to a URL whose owner does not want them.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlencode

from lamplighter.engine.client.outward import OutwardHttp
from lamplighter.engine.errors import RequestError, UpstreamError
from lamplighter.gateway.gates.deliveries.dispatch import refused


class IntentNotVerifiedError(RequestError):
    """The receiver does not confirm that it wants the notifications, or cannot be asked."""

    code = "not_verified"
    status = 403


async def verify(http: OutwardHttp, callback: str, mode: str, topic: str, lease_s: int | None = None) -> None:
    """Asks a receiver. mode: ``subscribe`` or ``unsubscribe``; lease_s: of the lease, None without end. Raises
    IntentNotVerifiedError."""
    challenge = secrets.token_urlsafe(32)
    parameters = {"hub.mode": mode, "hub.topic": topic, "hub.challenge": challenge}
    if lease_s is not None:
        parameters["hub.lease_seconds"] = str(lease_s)
    try:
        answer = await http.send("GET", _with(callback, parameters), {})
    except UpstreamError as error:
        raise IntentNotVerifiedError(f"the receiver cannot be asked for its intent: {error}") from error
    reason = refused(answer)
    if reason:
        raise IntentNotVerifiedError(f"the receiver does not confirm: {reason}")
    if not hmac.compare_digest(answer.body, challenge.encode()):
        raise IntentNotVerifiedError("the receiver does not confirm: the body of its answer is not hub.challenge")


async def deny(http: OutwardHttp, callback: str, topic: str, reason: str) -> None:
    """Tells a receiver that nothing follows. Raises UpstreamError."""
    await http.send("GET", _with(callback, {"hub.mode": "denied", "hub.topic": topic, "hub.reason": reason[:500]}), {})


def _with(url: str, parameters: dict[str, str]) -> str:
    """A URL with further parameters. Those that it has stay (WebSub, 5.1)."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"
