"""Views for operators of a running server, and the listener that serves them.

`views` has the replies as Structs. `browse` shows items without taking them, `files` the files of a journal. `health`
says whether all is well and how to mend what is not; its reasons are in `reasons`, and `watch` looks for those about
queues. `metrics` writes Prometheus' text. `sampler` looks at all queues in turn, for pages and for `history`. http/ has
the paths, page/ the operators' page. Changes of queues are in operations/.
"""
