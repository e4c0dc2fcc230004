"""Steering of running engines: read an application, get a recommendation, limit it, carry it out.

`core.py` is the same for every engine; a subpackage implements its `Engine`.
"""
