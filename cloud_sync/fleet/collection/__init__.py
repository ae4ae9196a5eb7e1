"""Collection: takes shipped objects into the lake. It needs no Spark.

collector: `lamplighter-fleet collect`, a round over all gateways and an answer for each object; segment_check: checks
one object by its content; histories: which history of its gateway it continues; landing: puts it into the lake or into
quarantine; manifest: the collector's ledger (SQLite); ledger: its file and its values; landing_numbers: numbers of what
has landed, and the landing log; missing: ranges of records that have not landed; forgetting: takes a gateway out of the
ledger.
"""
