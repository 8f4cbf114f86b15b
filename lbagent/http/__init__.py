"""HTTP/1.1: heads of messages, the server with bounded requests and answers, listeners by address. The content is the caller's."""
