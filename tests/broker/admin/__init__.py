"""The admin listener: health, views, sampling and what HTTP requests do."""
