"""`make quick`: the checks and the tests that belong to what has changed, in 40 s.

`rows` reads which tests belong to which folder from tests/README.md, `selection` orders the test
files, `budget` runs inside pytest and leaves out what is slow or too late, `__main__` asks git what has changed and
runs everything.
"""
