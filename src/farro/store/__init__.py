"""Keep jobs: the Store port and its adapters files (default), redis (many machines) and memory (tests).

Beside it the ports for what else a store keeps: Ledger, Library and Workspace.
"""
