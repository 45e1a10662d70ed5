"""Views for operators of a running server, and the listener that serves them.

`views` are replies as Structs, `browse` looks at items without taking them, `files` at a journal; `health` says whether
all is well and how to mend what is not (its reasons: `reasons`, `watch`), `metrics` is Prometheus' text, `sampler`
looks at all queues in turn for pages and for `history`. http/ has the paths, page/ the operators' page. Changes of
queues are in operations/.
"""
