"""One module for each noun or verb of the command line; `main.VERBS` names them, and loads each when it is called.

A module has the click commands and the columns of its tables. Modules here do not import one another.
"""
