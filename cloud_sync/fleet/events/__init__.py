"""Records -> compound events, the input of fleet subscriptions.

events: what one record asserts, or deletes, in one graph; described: the descriptions of a gateway's streams over
time; completion: events with the descriptions of their streams; single_events: both for few records, without
Spark.
"""
