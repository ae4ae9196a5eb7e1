"""Deliveries: resumable subscriptions whose notifications the gateway sends itself, by HTTP. Shared by the doors.

::

    loop ─▶ DispatchSink ─▶ Dispatch: what waits for one receiver, one request at a time ─▶ OutwardHttp ─▶ receiver
                                └─▶ Positions: what the receiver has, in a file

door: what the doors have in common; deliveries: all of one kind, from the log and from requests; dispatch: one of them;
sink: its sink in the loop; targets: which URLs may be called; attempts: pauses between attempts, and who may send at
the same time; folder: where files are; positions: one of them; keys: another one, the key of the signatures; asked: the
members of a request that name a query.
"""
