"""The Kestrel format on Spark: adapter.py has a queue's files and views, ops.py decodes records into the rows of `ops`,
effect_scan.py finds in the heads of records what a segment does to its queue, with item_runs.py for many items at once:
with it queue.py and state.py summarise files for the view `state`. items.py follows every item for the view `items`.

journal/kestrel/records.py has the records themselves; Spark is not imported here.
"""
