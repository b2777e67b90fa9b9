"""Pictures of a plan, pure: layers and their order (`layers`), positions (`placing`), and what is drawn from them.

`boxes` and `levels` draw for a terminal, `svg` and `mermaid` for everything else. No files and no terminal here: text
comes out, and who reads it is the caller's business. Nothing is imported here.
"""
