"""Queues in memory: `queue` (one queue; its data model is explained there), `line` (its ready items), `registry` (all
queues by name), `changes` (what a queue records, and what it calls), `checkpoint` (what its journal sees of it); in
`stream/` queues that share their items, in `jobs/` jobs. Time is an argument and an interface stands for the journal:
no file, socket or clock may enter.
"""
