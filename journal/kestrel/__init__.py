"""The Kestrel journal format: each queue has files of its own, named after it, that hold its changes as records.

| file | what it is | until when |
|---|---|---|
| `NAME` | the current file: the only one that is appended to | sealed when it is large, or replaced by a rewrite |
| `NAME.<ms>` | sealed: complete and synced; replayed in numeric order before `NAME` | a pack covers it |
| `NAME.<ms>.pack` | a pack: replaces every sealed file up to that number | renamed `NAME.<ms>` when they are removed |
| `NAME~~<ms>` | unfinished: a pack, or a new current file | renamed when it is synced; removed at start |
| `.staniel/segments/NAME.<ms>` | the sidecar of a sealed file: its effect, an index, checksums | its file goes |
| `.staniel/segments/NAME.removed` | the names of files that are being removed | their removal is durable |

records.py has the opcodes and the decoder of all records, encoder.py writes records, replay.py rebuilds a queue from
them, trace.py follows single items. files.py has the names, log.py one queue's journal, segments.py its files in order,
policy.py decides when to rotate, rewrite or pack. pack.py makes a pack and install.py puts it in place. read_behind.py
and item_reader.py read items back, find_copies.py finds the copies of transfers after a position. effect.py describes
the effect of a file on its queue, derived_effect.py computes it, sidecar.py stores it. recovery.py recovers a queue at
start. No module here imports another journal format, or knows clients or the time. Source: the Kestrel journal format,
docs/journal-kestrel.md.
"""
