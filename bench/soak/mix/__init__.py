"""Hours of all protocols, formats and accidents at once, while memory, descriptors, disk and latency are watched.

`wires.py` has the protocols, `clients.py` and `jobs.py` the clients of a shift, `stage.py` the server on its disk,
`accidents.py` the accidents, `run.py` the order of a run, `verdict.py` the judge of drift, `report.py` the report. The
judges of items and jobs are those of the kill loop: `ledger.py` and `jobs.py` above.
"""
