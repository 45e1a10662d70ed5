"""Readers of the three journal formats that were written from the format documents alone, held against the server's
own: `python -m tests.outside` makes random journals, tears and damages them, and compares what both find. The readers
are tests/conformance/replay.py (Kestrel's journal), libkestrel.py and workq.py (the command log); they and the maker of
journals import no module of the server's, not even a checksum, which test_outside.py checks. held.py, served.py and
borders/sides.py are the only files that know both sides. borders/ has what files at the borders of each field say.
"""
