"""The client for programs without an event loop: `staniel.client.Client`. It needs the standard library alone.

`client`, `connection`, `jobs` and `monitoring` are made of the files of `client/aio`, by
`packaging/blocking_client.py`; `transport` and `pool` are written by hand.
"""
