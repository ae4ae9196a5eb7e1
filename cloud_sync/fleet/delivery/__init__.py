"""Delivery: the rows of `matches` -> notifications at the sinks of their subscriptions, at least once and in order.

notifications: a match as JSON; match_files: the files of a batch; match_table: the matches in the order of their
batches; cursors: how far each sink is; sent_orders: orders that gateways have not answered; sinks/: where
notifications go; worker: one sink of one subscription; parts: what it is made of; dead_letters: what it gave up;
catching_up: gateways that were passed; runner: all of them; commands: `lamplighter-fleet subscriptions deliver`.
"""
