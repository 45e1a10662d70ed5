"""Adapters from journal formats to rows: one for each format, behind the interface FormatAdapter in base.py.

adapters.py tells formats apart and finds the files of each queue; kestrel/, libkestrel.py and workq.py are the
adapters. Records are decoded by journal/. Spark is not imported here.
"""
