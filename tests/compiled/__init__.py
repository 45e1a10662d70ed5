"""The compiled build: which modules run, and that the few with a .pyx are the same as their .py."""
