"""The data plane `record`: it balances no packets. It writes each call that a renderer of Services would get as a line of JSON."""
