"""The jobs of `staniel pipeline`: archive, drain, refill, verify, pack and convert; summarise.py merges summaries of
segments for several of them.

Each file has the function that a notebook or the command line calls, and the work of its tasks.
"""
