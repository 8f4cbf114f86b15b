"""The manifest folder as a source: which files count, when one is deleted or not trusted, and the copies for a restart.

Import `source.py`. Parsing a file is in `sources/manifest`; inotify in `kernel`.
"""
