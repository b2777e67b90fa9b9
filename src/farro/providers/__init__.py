"""Documented imports for providers of installed packages."""
