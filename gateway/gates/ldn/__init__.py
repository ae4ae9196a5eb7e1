"""Linked Data Notifications (W3C Recommendation): an inbox, and subscriptions that are delivered to inboxes of others.

::

    POST /inbox/ ─▶ notifications: constraints, contexts ─▶ inbox: a graph each ─▶ GET /inbox/ID
    POST /ldn ─▶ api: the inbox of a target ─▶ gates.deliveries ─▶ activities ─▶ the inbox

api: the paths. What inboxes of others say, and the JSON-LD contexts, are in `engine.client`.
"""

from lamplighter.gateway.gates.ldn.api import LinkedDataNotifications

__all__ = ["LinkedDataNotifications"]
