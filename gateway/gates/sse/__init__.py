"""Server-Sent Events (HTML Living Standard, section 9.2): subscriptions over one HTTP request.

door: the paths, their parameters, and the messages of one stream.
"""

from lamplighter.gateway.gates.sse.door import ServerSentEvents

__all__ = ["ServerSentEvents"]
