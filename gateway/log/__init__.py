"""The change log on disk.

writer: appends and syncs; reader: segments in order; keeper: rotation, snapshots and retention in the background;
sealing, snapshots, retention: each of them; persistent_store: the store on disk beside the log.
"""
