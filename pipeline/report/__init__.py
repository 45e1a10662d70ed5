"""The report on a fleet of journals: tables.py asks each format's views, figures.py computes with Spark,
page.py draws.
"""
