"""The configuration file. schema.py has every key except those of queues, which queues/config.py has; values.py has the
kinds of values; toml.py turns a table into a Struct. queue_settings.py resolves the settings of queues, load.py reads
and checks the whole file. This package only reads settings; other code applies them.
"""
