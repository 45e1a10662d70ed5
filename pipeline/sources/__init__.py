"""The Spark data sources: `staniel-journal` over journal files (journal*.py, planning.py, offsets.py) and `staniel`
over live queues (live*.py, drain*.py to read, sink.py to write, connection.py to a server). Jobs of the command line
are in tasks/.
"""
