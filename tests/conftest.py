"""What holds for the whole suite, however it was started."""

from __future__ import annotations

import signal

# A shell's background job ignores SIGINT, and every child inherits that; the commands tested are ended by it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
