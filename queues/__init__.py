"""Queues in memory. Time is an argument, and an interface (`interfaces`) stands for the journal: no code here uses
files, sockets or clocks.

A queue is three classes, each on the one before: `contents` (the items, and where they are), `time_outs` (how reads and
delays end; `xids` helps) and `queue` (what clients do; limits, expiry, waiters). `queue` explains the data model.
`line` has the ready items, `item` an item, `config` the settings, `counters` the statistics, `ages` the ages of items,
`sweeping` expired items behind a live head, `calendar` the clock of queues and that of the wall. `registry` has all
queues by name (`names`: which names are valid), `placeholder` a queue that is read before it exists. `changes` are what
a queue records; its journal sees it through `journal_view` and `checkpoint`. `transfer_recovery` and `past` are about
items that leave for another queue, `delays` about items that no client gets yet. In `stream/` queues share their items;
jobs are in `jobs/`.
"""
