"""The configuration file: schema.py has every key, values.py what a single value may be, toml.py turns a table into a
Struct, load.py reads and checks the whole. Nothing here acts on a setting.
"""
