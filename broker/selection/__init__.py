"""The choice of the items of a queue that an operation is about, beyond "the first so many".

`where` has the terms, such as "age>1h" or "text~timeout". `search` looks for items that meet them. `chosen` takes the
items found out of the queue, at any position. This package knows no protocol and moves no items: the operations do
(staniel.broker.operations).
"""
