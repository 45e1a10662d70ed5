"""The driver of a member of a cluster: the sockets, files, timers and etcd of the state machine in cluster/.

`process.py` is the start and the stop. `driver.py` carries out the member's effects in order. `links.py` has the
connections to other members, `etcd_link.py` etcd, `member_file.py` what the member keeps on its disk, `copying.py` the
copy of a spool to a member that joins. `gate.py` holds a leader's replies until they are answered, `refuser.py` says to
a follower's clients who leads, `admin.py` tells operators the state. All of it runs in one task at a time: nothing here
is called from a thread. A server that stands alone loads none of it.
"""
