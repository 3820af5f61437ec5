#!/usr/bin/env python3
"""Starts kvchat: looks at this Python, has the environment made, hands over. Nothing else.

Any Python 3 must be able to read this file, so that an old one can say in a sentence what is wrong.
"""

import os
import sys


def main(argv: "list[str]") -> int:
    if sys.version_info < (3, 11):
        found = "%d.%d" % sys.version_info[:2]
        sys.stderr.write(
            "kvchat needs Python 3.11 or newer, and this is Python %s. "
            "Install a newer one from python.org and start app.py with it.\n" % found
        )
        return 1
    root = os.path.dirname(os.path.abspath(__file__))
    if os.environ.get("KVCHAT_NO_BOOTSTRAP") != "1":
        from importlib import util

        # By path: the folder packaging/ is no package, or it would hide the library of that name.
        spec = util.spec_from_file_location(
            "kvchat_bootstrap", os.path.join(root, "packaging", "bootstrap.py")
        )
        assert spec is not None
        assert spec.loader is not None
        bootstrap = util.module_from_spec(spec)
        spec.loader.exec_module(bootstrap)
        code = bootstrap.enter(root, argv)
        if code is not None:
            return int(code)
    from kvchat.cli import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
