"""`staniel top`: the queues of a running server on a full screen, as they change.

A thin reader of `/api/events`, the stream that the page listens to: while nothing changes nothing is sent, and only
ages are drawn anew. `model` is what the server has said, `frame` makes lines of it, `feed` listens and connects again,
`screen` is the terminal and its keys. Nothing but `frame` and `screen` needs rich, the extra `top`.
"""
