"""The server process: sockets, threads, signals and the clock around one broker. `app.py` builds and runs it, `hub.py`
serves the clients turn by turn, `loop.py` calls it from trio. The rooms: `cli/` the command line, `backup/` copies of a
spool in a folder or a bucket, `selftest/` whether a disk is fit for a spool. What a request does to a queue is decided
in broker/, and nothing here reads or writes a journal.
"""
