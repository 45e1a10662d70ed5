"""Hours of all protocols, formats and accidents at once, with memory, descriptors, disk and latency watched.

`wires.py` speaks the protocols, `clients.py` and `jobs.py` are the clients of a shift, `stage.py` the server on its
disk, `accidents.py` what happens to them, `run.py` the order of a run, `verdict.py` the judge of drift, `report.py`
what is written at the end. Of items and jobs the judges are those of the kill loop: `ledger.py` and `jobs.py` above.
"""
