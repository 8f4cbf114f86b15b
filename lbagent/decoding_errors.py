"""The exceptions of decoders for texts that another program wrote.

msgspec and json raise more than their own errors: RecursionError for values nested a thousand levels deep, UnicodeDecodeError
(a ValueError) for bytes that are not UTF-8, ValueError for an integer of more than 4,300 digits.
"""

from __future__ import annotations

import msgspec

DECODING_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


def decoding_problem(error: Exception) -> str:
    """Return the problem of a text that raised one of DECODING_ERRORS."""
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason}"
    return str(error)
