"""The past, for people.

records: reads a data folder; verification: checks it; backup, restoring: a dataset out and in.
"""
