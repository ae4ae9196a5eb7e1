"""Periods of local time, such as "from sunset to 7:00", as triples that change at their instants (docs/time.md).

times: a time of day as people write it, and its instants at a place; periods: when a period is active; service: keeps
what the dataset says of the periods that are declared in it.
"""
