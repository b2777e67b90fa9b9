"""Draw a plan as text: `boxes` and `levels` for a terminal, `svg` and `mermaid` for pages.

`layers` orders the graph, `positions` places its members, `edges` routes the lines.
"""
