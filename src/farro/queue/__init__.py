"""Submit, list, wait for, explain and prune jobs: the functions behind the CLI, the APIs and the services.

No argument parsing and no printing here.
"""
