"""The libkestrel journal format: each item of a queue is stored once, however many fan-out children read it.

A queue and its children (`orders`, `orders+audit`) are one family with two kinds of file. The segments `orders.<ms>`
have the items, numbered by ids that always rise; only the newest segment is appended to, and a segment is removed or
archived once every reader has passed it. A reader file `orders.read.<reader>` has the position of one queue: the head,
an id up to which everything is confirmed, and the confirmed ids above it. Every batch is appended to it; when it has
grown, a short one replaces it. Names with `~~` are unfinished replacements, which are removed at start.
records.py has the bytes of both kinds. scan.py, segments.py and find_copies.py read items, position.py a reader file;
appender.py, writer.py and reader.py append. cutting.py shortens a segment when the disk is full. recovery.py recovers a
family at start, trace.py follows single items, and family.py joins all of these. No module here imports another journal
format. Source: the libkestrel journal format, docs/journal-libkestrel.md.
"""
