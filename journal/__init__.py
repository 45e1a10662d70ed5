"""Journals: the changes of queues as files, and reading these files back into queues.

spool.py is a spool folder with all of its journals. spool_listing.py lists the queues in a folder, journals.py the
files of a queue in either format. group_commit.py writes and syncs journals together, background.py queues disk work
that no reply waits for. transfer_log.py makes moves between two journals safe, put_key_log.py has the idempotency keys
of puts. own_files.py says which lost file ends the server. membership.py says what a spool tells of its cluster.
renewal.py rewrites the files that a failed sync has put in
doubt. The formats share errors.py, interval_set.py, slices.py, dump.py and trace.py. The rooms: disk/ (the file
system); kestrel/, libkestrel/ and workq/ (a format each; no format imports another); redo/ (the write-ahead log of all
durable queues); tools/ (for operators). No code here knows clients, sockets, clocks or threads.
"""
