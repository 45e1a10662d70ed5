"""Adapters from journal formats to rows: one for each format, behind the interface FormatAdapter in base.py.

adapters.py tells formats apart and finds the files of each queue; kestrel/, libkestrel/ and workq.py are the
adapters; archived.py is what reading archives back shares. Records are decoded by journal/. Spark is not imported here.
"""
