"""The server process: sockets, threads, signals and the clock around one broker. `app.py` builds and runs it, `hub.py`
serves the clients turn by turn, `loop.py` calls it from trio, `cli/` has the commands. What a request does to a queue
is decided in broker/, and nothing here reads or writes a journal.
"""
