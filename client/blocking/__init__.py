"""The client for programs without an event loop: `staniel.client.Client`. It needs only the standard library.

`packaging/blocking_client.py` makes all files from those of `client/aio`, except `transport`, which is written by hand.
"""
