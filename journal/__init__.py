"""Journals: the changes of queues as files, and reading these files back into queues.

spool.py is a spool folder with all of its journals; spool_listing.py says which queues a folder holds, journals.py
which file of a queue is which, in either format. group_commit.py writes and syncs journals together, background.py
queues disk work that no reply waits for, transfer_log.py makes moves between two journals safe, put_key_log.py has the
idempotency keys of puts, own_files.py says which loss of a file ends the server, and renewal.py writes anew what a
failed sync has put in doubt. What the formats share is here too: errors.py, interval_set.py, slices.py, dump.py,
trace.py. The rooms: disk/ (the file system), kestrel/, libkestrel/ and workq/ (a format each; no format imports
another), redo/ (the write-ahead log of all durable queues) and tools/ (for operators). Nothing here knows clients,
sockets, clocks or threads.
"""
