"""Tools that operators run on a spool, outside the server. verify.py reads every journal file and compares checksums.
convert.py moves a queue to another journal format. repair.py makes a copy without unreadable parts. unfinished.py finds
work that the last server left unfinished; the other tools check it first. stats.py, history.py and contents.py show
what files contain, what became of an item, and what a queue contained at a moment, also while a server has the files
open. source.py finds the files. The tools may import every format; no other module of journal imports them.
"""
