"""What starts components (port: Runtime): processes of this machine.

Which components a root has lives in operations.
"""
