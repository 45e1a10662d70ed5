"""One server without its sockets: sessions, what their requests do, timers, transfers between queues, recovery,
statistics. The rooms: commands/ (what each request does), operations/ (what operators can ask for), selection/ (which
items an operation is about), page/ (the operators' page), config/ (the configuration file), maintenance/ (packing,
read-ahead, sidecars, memory). Everything is synchronous and deterministic: time is an argument, the disk is an `Fs`,
and what drives the broker (server/ or sim/) runs the syncs and tasks that it hands out. No sockets, threads or
clocks may enter.
"""
