# The commands that CI runs, in the environment that `python app.py` made. `just` alone runs the checks.

bin := if os() == "windows" { ".venv/Scripts" } else { ".venv/bin" }

default: check test

# lint, format, types, floors
check:
    {{bin}}/ruff check
    {{bin}}/ruff format --check
    {{bin}}/mypy
    {{bin}}/lint-imports

# mend what ruff can mend
format:
    {{bin}}/ruff check --fix
    {{bin}}/ruff format

# the test suite; arguments go to pytest
test *arguments:
    python3 app.py test {{arguments}}

# the tests that take minutes
slow *arguments:
    python3 app.py test -m slow {{arguments}}

# on a machine with a card: the tests that need one, and a table of what it reaches
gpu:
    {{bin}}/python -m tests.gpu

# everything that CI does
ci:
    bash .ci/run
