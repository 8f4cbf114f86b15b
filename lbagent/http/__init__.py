"""The HTTP/1.1 server: bounded requests, answers, listeners by address. No word of what is served."""
