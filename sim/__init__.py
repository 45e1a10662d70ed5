"""The simulator: the real broker, or the real hub, in a world made of fakes, with seeded accidents and a judge.

`history.py` runs one seed, `profiles.py` says which accidents it meets, `world.py` drives a broker without sockets. The
rooms: `disk/` the fake disk, `queues/` and `jobs/` what is asked and what must hold, `hub/` the same with sockets, and
`mutants/`, broken rules that must be noticed. Nothing here may draw a random number without a seed, read a clock, start
a thread or touch a file: the same seed is the same history. See docs/simulator.md.
"""
