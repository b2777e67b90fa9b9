"""An in-memory index of all jobs of a store, for repeated queries: lists, pages, counts, charts and change events."""
