"""Manifest texts to objects: YAML or JSON documents, with the file and line of each fault.

Import `documents.py`. Finding and following files is in `sources/folder`; the shape of an object in `objects/decode`.
"""
