"""Items that are put once and read by many queues, as in libkestrel's format: `stream` holds the newest items, who
follows, and the line of what one reader has not read yet; `queue` is a Queue over it. Files stay behind StreamLog and
ReaderJournal.
"""
