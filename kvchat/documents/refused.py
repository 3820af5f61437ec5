"""Why a file cannot be read: raised where that is found, told by `reader.py` as a sentence."""


class Refused(Exception):
    """The argument is a code: `document_<code>` names the sentence."""
