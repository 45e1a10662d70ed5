"""PyPI's memcache, which speaks meta commands only. It shares its module's name with python-memcached, so it has an
environment of its own, and this script knows nothing of ours.
"""

import sys

from memcache import Memcache, MemcacheError

client = Memcache(("127.0.0.1", int(sys.argv[1])))


def show(value: object) -> None:
    print("nothing" if value is None else value)


for word in ("one", "two", "three"):
    client.set("jobs", word)
show(client.get("jobs"))
show(client.get("jobs/open"))
show(client.get("jobs/abort"))
show(client.get("jobs/open/t=100"))
show(client.get("jobs/close/open"))
show(client.get("jobs/close"))
show(client.get("jobs/t=50"))
for value in (42, b"bytes", {"answer": [42]}):
    client.set("jobs", value)
    show(client.get("jobs"))
client.set("jobs", "last", expire=60)
show(client.gets("jobs/peek")[1] > 0)
try:
    client.incr("jobs")
except MemcacheError:
    show("refused")
show(client.get("jobs"))
client.delete("jobs")
show(client.get("jobs"))
