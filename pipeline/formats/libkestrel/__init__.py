"""libkestrel's format as rows: adapter.py has the views of a spool, archived.py the view `state` of an archive."""
