"""Adapters from journal formats to rows: one for each format, behind the interface FormatAdapter in base.py.

adapters.py detects formats and finds the files of each queue; kestrel/, libkestrel/ and workq.py are the adapters;
archived.py has what the readers of archives share. journal/ decodes records. Spark is not imported here.
"""
