"""What several measurements share: server processes, facts about the machine, polite clients, charts.

Nothing here knows what is being measured.
"""
