"""The change log on disk.

data_folder: its lock and the gateway's name; entries: what a record says; writer: append and sync; reader: every good
record in order, torn tails, damage; damage: its reports, until an operator accepts them; tail: the newest lines in
memory; maintenance: background work; sealing, snapshots, retention: its parts; persistent_store: a dataset on disk.
"""
