"""The server process: sockets, threads, signals and the clock around one broker.

`app.py` builds and runs it, `hub.py` serves the clients turn by turn, `loop.py` calls the hub from trio. Its parts are
`connection_limits.py`, `read_schedule.py` (the order of reads), `disk_work.py` (syncs and tasks), `timeouts.py`,
`handshakes.py`, `pending_bytes.py` and `latency_samples.py`. `text.py` and `progress.py` format what is shown on a
terminal. `cli/` has the command line, `backup/` copies of a spool in a folder or a bucket, `selftest/` the checks of a
disk for a spool, `cluster/` the driver of a member of a cluster. The broker decides what a request does to a queue. No
module here reads or writes a journal.
"""
