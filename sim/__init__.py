"""The simulator: the real broker, or the real hub, in a simulated world with seeded accidents and a judge.

`history.py` runs one seed, `profiles.py` says which accidents it has, `world.py` drives a broker without sockets. The
rooms: `disk/` the simulated disk, `queues/` and `jobs/` the requests and the invariants, `hub/` the same with sockets,
and `mutants/` broken rules that must be noticed. No code here may draw a random number without a seed, read a clock,
start a thread or touch a file: the same seed gives the same history. See docs/testing.md.
"""
