"""What the drawer of settings and the tabs beside it may ask: what would be, files, any model."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvchat.memory.formats import pairs
from kvchat.models.catalog import catalog
from kvchat.settings import SCHEMA, Settings, read_preset
from kvchat.wording import LANGUAGES
from tests.ui.standin import StandIn
from tests.ui.test_calls import calls

GIB = 2**30
LANGS = pytest.mark.parametrize("lang", LANGUAGES)


@pytest.fixture
def talks() -> Iterator[StandIn]:
    found = StandIn(token_s=0.0, page_s=0.0)
    yield found
    found.close()


@LANGS
def test_every_field_says_where_its_value_comes_from_and_what_a_reset_gives(
    talks: StandIn, lang: Any
) -> None:
    talks.apply({"top_k": 4})
    found = calls(talks, lang)["settings"]({})
    fields = {one["name"]: one for group in found["groups"] for one in group["fields"]}
    assert set(fields) == set(SCHEMA)
    assert (fields["top_k"]["source"], fields["top_k"]["below"]) == ("file", 0)
    assert fields["min_p"]["source"] == "schema"
    assert found["capacities"]["device"] == 12 * GIB
    assert {one["value"]: one["values"]["prefill_chunk"] for one in found["presets"]} == {
        name: read_preset(name)["prefill_chunk"]
        for name in ("balanced", "best_quality", "cpu", "long_context", "low_vram")
    }
    assert all(one["about"] for one in found["presets"])


def test_what_is_wrong_is_told_with_what_the_rest_would_mean(talks: StandIn) -> None:
    found = calls(talks)["foretell"]({"changes": {"top_k": -1, "memory_budget": "9 GiB"}})
    assert set(found["mistakes"]) == {"top_k"}
    assert found["effects"] == {"memory_budget": "now"}
    assert found["then"]["tokens"] < found["now"]["tokens"]
    assert found["then"]["binding"] == "budget"
    assert talks.settings == Settings()


@pytest.mark.parametrize("sent", [None, [], "x", {}, {"changes": 3}, {"changes": ["top_k"]}])
def test_what_scripts_would_not_send_is_refused(talks: StandIn, sent: object) -> None:
    found = calls(talks)
    for name in ("foretell", "apply", "load_model"):
        assert set(found[name](sent)) == {"error"}


def test_settings_go_out_as_a_file_and_come_back(talks: StandIn) -> None:
    talks.apply({"top_k": 4, "system_text": 'a "b" 한국어', "ladder": ["evict", "drop_idle"]})
    named = calls(talks)
    file = named["export_settings"]({})
    assert file["name"].endswith(".toml")
    talks.apply({}, ["top_k", "system_text", "ladder"])
    found = named["import_settings"](file)
    assert found["values"] == {
        "ladder": ["evict", "drop_idle"], "top_k": 4, "system_text": 'a "b" 한국어',
    }  # fmt: skip
    assert talks.settings.top_k == 0, "nothing is changed before it is applied"


@LANGS
@pytest.mark.parametrize(
    "text", ["top_k = -1", "not toml", "nosuch = 1", "[" * 9999, '[models."x"]\ntop_k = "a"', "\0"]
)
def test_a_bad_file_is_one_sentence(talks: StandIn, lang: Any, text: str) -> None:
    found = calls(talks, lang)["import_settings"]({"name": "mine.toml", "text": text})
    assert "mine.toml" in found["error"]["message"]
    assert "values" not in found


CONFIG = json.dumps(dict(catalog()["Qwen3-8B"].config))


@pytest.mark.parametrize("card", [0, 8 * GIB, 24 * GIB])
@pytest.mark.parametrize("model", ["smollm2", "Qwen3-8B", "gemma-3-4b-it", ""])
def test_any_model_on_any_card(talks: StandIn, model: str, card: int) -> None:
    sent = {"model": model, "config": "" if model else CONFIG, "card": card, "context": 20_000}
    found = calls(talks)["whatif"](sent | {"pair": "int8"})
    items = ("weights", "kv_device", "activations", "workspace")
    assert found["footprint"]["total"] == sum(found["footprint"][one] for one in items)
    room = found["room"]
    assert room["usable_bytes"] == room["total_bytes"] - room["headroom_bytes"]
    assert found["short_by_bytes"] == max(0, found["footprint"]["total"] - room["usable_bytes"])
    for row in found["rows"]:
        fits = row["largest_context"] >= min(found["context"], found["max_positions"])
        assert fits == (row["short_by_bytes"] == 0) or found["context"] > found["max_positions"]
    assert [len(line["bytes"]) for line in found["chart"]["lines"]] == [17] * 9
    assert all(line["bytes"] == sorted(line["bytes"]) for line in found["chart"]["lines"])
    assert found["weights_from"] == ("catalog" if model else "config")
    failed = {one["pair"] for one in found["chart"]["lines"] if one["failed"]}
    marked = [
        f"{row['key_format']}/{row['value_format']}" for row in found["rows"] if row["failed"]
    ]
    assert failed == set(marked) == ({"int2/int2"} if model == "smollm2" else set())
    half = calls(talks)["whatif"](sent | {"pair": "int2", "dtype": "bf16"})
    assert (half["dtype"], half["failed"]) == ("bf16", "int2/int2" in failed)


def test_what_the_calculator_says_is_what_plan_says(
    talks: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvchat.cli import main

    flags = ["--model", "Qwen3-8B", "--context", "20000", "--json", "--memory-budget", "12GiB"]
    folder = str(talks.loading.data_dir)
    assert main(["plan", *flags, "--data-dir", folder]) == 0
    planned = json.loads(capsys.readouterr().out)
    talks.apply({"memory_budget": "12 GiB"})
    found = calls(talks)["whatif"]({"model": "Qwen3-8B", "context": 20_000, "card": 0, "all": True})
    assert found["footprint"] == planned["footprint"]
    own = ("short_by_bytes", "failed")
    assert [{k: v for k, v in row.items() if k not in own} for row in found["rows"]] == (
        planned["pairs"]
    )
    assert len(found["rows"]) == len(pairs())


@pytest.mark.parametrize(
    "sent",
    [{"config": "{"}, {"config": "[]"}, {"config": "[" * 9999}, {"config": "{}"},
     {"config": '{"model_type": "llama", "num_hidden_layers": -3}'}, {"model": "/nowhere"},
     {"model": "smollm2", "pair": "int3"}, {"model": "smollm2", "card": -1},
     {"model": "smollm2", "context": 1.5}, {"model": "smollm2", "weights": "int3"},
     {"model": 3}, {"config": '{"model_type": "llama", "hidden_size": "<script>"}'}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_counted_is_told_in_a_sentence(talks: StandIn, sent: Any) -> None:
    for lang in LANGUAGES:
        found = calls(talks, lang)["whatif"](sent)
        assert set(found) == {"error"}
        assert found["error"]["message"]
        assert found["error"]["remedy"]


@LANGS
def test_models_that_fit_stand_first_and_korean_is_told(talks: StandIn, lang: Any) -> None:
    found = calls(talks, lang)["models"]({})
    rows = found["models"]
    assert rows[0]["ref"] == "smollm2"
    assert found["room"] == calls(talks, lang)["whatif"]({"model": "smollm2", "card": 0})["room"]
    rest = rows[1:]
    assert {one["name"] for one in rest} == set(catalog()) - {"smollm2"}
    fits = [any(way["fits"] for way in one["ways"]) for one in rest]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)
    assert not all(fits)
    known = {one["name"]: one["serves_korean"] for one in rest}
    assert known == {name: one.serves_korean for name, one in catalog().items() if name in known}
    if lang == "ko":
        fitting = [one["serves_korean"] for one, fit in zip(rest, fits, strict=True) if fit]
        assert fitting == sorted(fitting, reverse=True)


def test_loading_is_asked_for_with_its_precision(talks: StandIn) -> None:
    named = calls(talks)
    named["load_model"]({"model": "smollm2", "dtype": "bf16", "weights": "int8"})
    named["reload_model"]({})
    named["unload_model"]({})
    named["cancel_load"]({})
    assert talks.loading.asked == [
        {"model": "smollm2", "dtype": "bf16", "weights": "int8"}, "reload", "unload", "cancel",
    ]  # fmt: skip
