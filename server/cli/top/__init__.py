"""The command `staniel top`: the queues of a running server on a full screen, as they change.

The command reads `/api/events`, the stream that the page uses. An idle server sends nothing; then only ages are drawn
again. `model` has the received data, `frame` turns it into lines, `feed` receives and reconnects, `screen` handles the
terminal and its keys. Only `frame` and `screen` need rich, the extra `top`.
"""
