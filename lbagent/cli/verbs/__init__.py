"""One module a noun or verb of the command line; `main.VERBS` says which, and when each is loaded."""
