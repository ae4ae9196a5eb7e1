"""Reads the past from a data folder, and brings it back.

records: records and datasets as of any record; log_page: records in bounded form; changes: those of the dataset behind
a position; names: records and terms in short form; explanation: why an actuator was switched; chain_texts: the same in
words; logbook: what happened, of the same links; subjects: who is meant by a name; charts: values of a time, from the
series_index of sealed segments, which indexing makes of samples; rehearsal: what an application would have done;
rehearsal_outcome: the same, counted and in words; verification: checks every file, the segments by log_check, and tells
the findings; backup: writes a backup; restoring: restores one while the gateway runs.
"""
