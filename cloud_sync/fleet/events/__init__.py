"""Records -> compound events, the input of fleet subscriptions.

events: what one record asserts, or deletes, in one graph.
"""
