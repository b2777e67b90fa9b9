"""Confine the processes of a job: the kernel enforces what they may access.

Where the kernel cannot enforce all of it, the tree under the root is compared before and after each process.
"""
