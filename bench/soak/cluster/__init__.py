"""A cluster under accidents for as long as wanted: three members and three etcds, each in a network of its own.

`network.py`: the networks; `machines.py`: the processes, their disks and settings; `clients.py`: clients, and what they
know of each item; `accidents.py`: the accidents of machines and networks; `run.py`: a run and its report.
"""
