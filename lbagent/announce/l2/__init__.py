"""What is said and heard on the link: frames, sockets, groups, and when the wire is asked."""
