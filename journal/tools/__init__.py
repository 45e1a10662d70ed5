"""Tools that operators run on a spool, beside the server: verify.py reads every journal file and compares checksums,
convert.py moves a queue to another journal format, repair.py makes a copy without what cannot be read; unfinished.py
finds the work that the last server has left to finish, and the other tools ask it first. stats.py, history.py and
contents.py tell what files hold, what became of an item, and what a queue held at a moment, also while a server has
them open; source.py finds the files. They may import every format; nothing in journal imports them.
"""
