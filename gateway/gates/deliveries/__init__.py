"""Deliveries: resumable subscriptions whose notifications the gateway sends itself, by HTTP. Shared by the doors.

::

    loop ─▶ WorkerSink ─▶ DeliveryWorker: what waits for one receiver, one request at a time ─▶ receiver
                                └─▶ Positions: what the receiver has, in a file

api: what the doors have in common; registry: all deliveries of one kind, from the log and from requests, and which
URLs may be called; worker: one delivery, its sink, and what they share; files: positions, and the key of the secrets.
"""
