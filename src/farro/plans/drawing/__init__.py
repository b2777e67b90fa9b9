"""Draw a plan: characters for a `terminal`, an `svg`, Mermaid and HTML `markup`. `layout` places the graph."""
