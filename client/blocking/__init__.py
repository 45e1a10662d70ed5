"""The client for programs without an event loop: `staniel.client.Client`. It needs only the standard library.

`packaging/blocking_client.py` makes `client`, `connection`, `jobs`, `monitoring`, `multi` and `pool` from the files of
`client/aio`; `transport` is written by hand.
"""
