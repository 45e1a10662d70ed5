"""The client for programs without an event loop: `staniel.client.Client`. It needs the standard library alone.

`client`, `connection`, `jobs`, `monitoring`, `multi` and `pool` are made of the files of `client/aio`, by
`packaging/blocking_client.py`; `transport` is written by hand.
"""
