"""Doors into other libraries. Each module is imported by name and registers nothing until it is asked to."""
