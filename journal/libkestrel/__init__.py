"""The libkestrel journal format: each item of a queue is stored once, however many fan-out children read it.

A queue and its children (`orders`, `orders+audit`) are one family with two kinds of file. The segments `orders.<ms>`
hold the items, numbered by ids that rise without end; only the newest segment is appended to, and a segment is removed
or archived once every reader is past it. A reader file `orders.read.<reader>` holds how far one queue has come: the
head, which is an id up to which everything is confirmed, and the confirmed ids above it. It is appended to with every
batch and replaced by a short one when it has grown. Names with `~~` are unfinished replacements, removed at start.
records.py has the bytes of both kinds, scan.py, segments.py and search.py read items, position.py a reader file;
appender.py, writer.py and reader.py append; cutting.py
shortens a segment when the disk is full; recovery.py is the start, trace.py follows single items; family.py puts
them together. Nothing here imports another journal format. Source: the libkestrel journal format,
docs/journal-libkestrel.md.
"""
