"""Webhooks: subscriptions whose notifications are POSTed to a URL, as W3C WebSub describes hubs.

api: the paths and their bodies, and what the receiver is asked and told beside its notifications.
"""

from lamplighter.gateway.gates.webhooks.api import Webhooks

__all__ = ["Webhooks"]
