"""The choice of the items of a queue that an operation is about, beyond "the first so many".

`where` has the terms, such as "age>1h" or "text~timeout"; `search` looks for items that meet them; `chosen` takes those
found out of the queue, at any position. Nothing here knows of HTTP, and nothing moves an item by itself: the operations
do that (staniel.broker.operations).
"""
