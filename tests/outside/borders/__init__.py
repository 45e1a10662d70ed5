"""The borders of the three formats, opcode by opcode: small files written byte by byte, and beside each what its bytes
say by the format's document. kestrel.py, libkestrel.py and workq.py are the tables, in the notation of table.py; they
import no module of the server's. sides.py asks the server's recovery and the readers of the folder above.
"""
