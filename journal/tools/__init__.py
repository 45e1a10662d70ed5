"""What operators run on a spool, beside the server: verify.py reads every journal file and compares checksums,
convert.py moves a queue to another journal format. They may import every format; nothing in journal imports them.
"""
