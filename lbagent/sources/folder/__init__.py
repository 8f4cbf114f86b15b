"""The manifest folder as a source: the files in use, when one counts as deleted or untrusted, and the copies for a restart.

Import `source.py`. Parsing a file is in `sources/manifest`; inotify in `kernel`.
"""
