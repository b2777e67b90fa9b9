"""Load every module of the file store before a test replaces a function in one: until its first use, the store holds a
stand-in for such a module, and a function that replaces one of the stand-in's is never called."""

from farro.store.files import load_operations

load_operations()
