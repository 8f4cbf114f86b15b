"""One module for each noun or verb of the command line; `main.VERBS` lists them, and each is imported when it is called.

A module has the click commands and the columns of its tables. Modules here do not import one another.
"""
