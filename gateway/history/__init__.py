"""Reads the past from a data folder, and brings it back.

records: records and datasets as of any record; verification: checks every file; backup: writes a backup; restoring:
restores one while the gateway runs.
"""
