"""Which items of a queue an operator means, beyond "the first so many".

`where` terms, such as "age>1h" or "text~timeout"; `search` the look for items that meet them; `chosen` taking those
found out of the queue, wherever they stand. Nothing here knows of HTTP, and nothing moves an item by itself: what is
done with them is an operation's (staniel.broker.operations).
"""
