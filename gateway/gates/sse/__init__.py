"""Server-Sent Events (HTML Living Standard, section 9.2): subscriptions over one HTTP request.

api: the paths, their parameters, and the messages of one stream.
"""

from lamplighter.gateway.gates.sse.api import ServerSentEvents

__all__ = ["ServerSentEvents"]
