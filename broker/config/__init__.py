"""The configuration file: schema.py has every key, values.py the kinds of values, toml.py turns a table into a Struct,
load.py reads and checks the whole. Nothing here acts on a setting.
"""
