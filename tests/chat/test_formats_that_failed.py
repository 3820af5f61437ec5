"""A format that the model failed: refused at the start and while the program runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat import cli
from kvchat.chat.conversations import Conversations
from kvchat.errors import SettingsError
from kvchat.models.verdicts import Verdict, keep_verdicts
from tests.tiny import key_of

Start = Callable[..., Conversations]
FAILED = Verdict("int4/int4", 0.3, 61.5, 20.0, 1024, "words.txt", 1.0)


def test_not_in_the_running_program(start: Start, data_dir: Path, tiny_path: Path) -> None:
    """Nothing changes; what does not concern formats goes on; who insists is let through."""
    conversations = start()
    keep_verdicts(data_dir, key_of(tiny_path), [FAILED])
    assert conversations.verdicts()["int4/int4"] == FAILED
    with pytest.raises(SettingsError, match=r"int4 is not offered for tiny \(seal_format\)"):
        conversations.apply({"seal_format": "int4", "top_k": 3})
    assert (conversations.settings.seal_format, conversations.settings.top_k) == ("fp", 0)
    conversations.apply({"seal_format": "int8"})
    conversations.apply({"allow_unproven": True, "seal_format": "int4"})
    conversations.apply({"top_k": 3})
    with pytest.raises(SettingsError, match="seal_format"):
        conversations.apply({"allow_unproven": False})
    assert conversations.settings.allow_unproven
    conversations.apply({"allow_unproven": False, "seal_format": "int8"})


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_not_from_the_command_line(
    tiny_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str], lang: str
) -> None:
    keep_verdicts(data_dir, key_of(tiny_path), [FAILED])
    words = ["ask", "hello", "--model", str(tiny_path), "--data-dir", str(data_dir)]
    assert cli.main([*words, "--lang", lang, "--set", "floor_format=int2"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for fact in ("int2", "tiny", "floor_format", "int4/int4", "0.3000", "61.5", "allow_unproven"):
        assert fact in said
