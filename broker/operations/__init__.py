"""Operations on a running server, whichever interface asks: HTTP, the command line, memcache's commands.

`views` are the replies as Structs, `browse` looks at items without taking them, `move` takes them to another queue,
`changes` empties a queue, pauses it, gives back open reads, `health` says whether all is well and how to mend what is
not, `metrics` is Prometheus' text; `sampler` looks at all queues in turn for pages and for `history`, `files` at a
journal. Nothing here knows how a request came; long work is done in pieces, a piece a turn.
"""
