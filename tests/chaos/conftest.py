"""What the tests of the engine make their engines with."""

from tests.chat.conftest import start as start
from tests.chat.conftest import tiny_path as tiny_path
from tests.engine.conftest import load_tiny as load_tiny
from tests.engine.conftest import make_engine as make_engine
from tests.engine.test_injected import loaded_as as loaded_as
