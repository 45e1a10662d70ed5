"""The shared parts of several measurements: server processes, facts about the machine, polite clients, charts.

No module here knows what is being measured.
"""
