"""Files and folders: spools, which are read, and lakes, which are written: Parquet tables by queue and day.

folders.py reads and writes files locally or through pyarrow, names.py shows names as text, arrow.py builds columns,
parquet.py writes the files of a task, lake.py decides which files count. Journal formats and Spark are not imported
here.
"""
