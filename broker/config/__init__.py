"""The configuration file: schema.py has every key but those of queues, which queues/config.py has; values.py the kinds
of values; toml.py turns a table into a Struct. queue_settings.py resolves the settings of queues, load.py reads and
checks the whole. Nothing here acts on a setting.
"""
