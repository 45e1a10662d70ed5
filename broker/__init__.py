"""A server without its sockets: sessions, the effects of their requests, timers, transfers between queues, recovery,
statistics. The rooms: commands/ (the effect of each request), operations/ (what operators can ask for), selection/
(which items an operation is about), page/ (the operators' page), config/ (the configuration file), maintenance/
(packing, read-ahead, sidecars, memory). Everything is synchronous and deterministic: time is an argument, the disk is
an `Fs`, and the driver of the broker (server/ or sim/) runs the syncs and tasks that the broker hands out. No sockets,
threads or clocks may enter.
"""
