"""Drives the published Python client for the tests, in the client's own environment.

A JSON object a line in, JSON objects a line out, as in js/drive.js: ``{"id", "call", ...}`` is answered by
``{"id", "result"}`` or ``{"id", "error": {"message", "kind"}}``; what a subscription is told is
``{"event": "notification", "of", "data": {"added", "removed"}}``.
"""

import json
import logging
import sys
import threading
import warnings

warnings.simplefilter("ignore")  # the client is of another time than its environment

import yaml  # noqa: E402
from sepy.SAPObject import SAPObject, YsapTemplate, generate  # noqa: E402
from sepy.SEPA import SEPA  # noqa: E402

_lock = threading.Lock()


def tell(message):
    with _lock:
        print(json.dumps(message), flush=True)


class Calls:
    def __init__(self):
        self.client = None

    def open(self, profile, client_id=None):
        self.client = SEPA(sapObject=SAPObject(profile, log=logging.CRITICAL), client_id=client_id)

    def open_text(self, text):
        self.open(yaml.safe_load(text))

    def update(self, key, bindings=None):
        return self.client.update(key, forcedBindings=bindings or {})

    def query(self, key, bindings=None):
        return self.client.query(key, forcedBindings=bindings or {})

    def query_all(self):
        return self.client.query_all()

    def clear(self):
        return self.client.clear()

    def subscribe(self, key, name, bindings=None, default_graph=None):
        def handler(added, removed):
            tell({"event": "notification", "of": name, "data": {"added": added, "removed": removed}})

        return self.client.subscribe(
            key, name, forcedBindings=bindings or {}, handler=handler, default_graph=default_graph
        )

    def unsubscribe(self, spuid):
        self.client.unsubscribe(spuid)

    def expire(self, token):
        """Has the client use a token that is no good any more."""
        self.client.connectionManager.token = token

    def generated(self, parts):
        """The profile that the client makes of its parts, as text."""
        return generate(YsapTemplate, **parts)


def main():
    calls = Calls()
    for line in sys.stdin:
        request = json.loads(line)
        number, call = request.pop("id"), request.pop("call")
        try:
            tell({"id": number, "result": getattr(calls, call)(**request)})
        except Exception as error:
            tell({"id": number, "error": {"kind": type(error).__name__, "message": str(error)}})


main()
