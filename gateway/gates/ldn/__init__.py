"""Linked Data Notifications (W3C Recommendation): an inbox, and subscriptions that are delivered to inboxes of others.

::

    POST /inbox/ ─▶ notifications: constraints, contexts ─▶ inbox: a graph each ─▶ GET /inbox/ID
    POST /ldn ─▶ door: the inbox of a target ─▶ gates.deliveries ─▶ activities ─▶ the inbox

door: the paths. What inboxes of others say, and the JSON-LD contexts, are in `engine.client`.
"""

from lamplighter.gateway.gates.ldn.door import LinkedDataNotifications

__all__ = ["LinkedDataNotifications"]
