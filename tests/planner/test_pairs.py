"""The table that the README shows comes from here."""

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.memory.formats import pairs
from kvchat.planner.pairs import markdown_table


def test_the_table_of_the_published_row():
    spec = ModelSpec(
        "x", (LayerSpec("full", 8, 128, 128),) * 80, 8192, 28672, 128256, 64, 0, 131072
    )
    assert markdown_table([("Llama-3-70B", spec)]) == (
        "| model | KV format | bytes a token | 4,096 tokens | 32,000 tokens | 131,072 tokens |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |\n"
        "| Llama-3-70B | fp16 | 327,680 | 1.25 GiB | 9.77 GiB | 40.00 GiB |\n"
        "| Llama-3-70B | int8 without scales | 163,840 | 640 MiB | 4.88 GiB | 20.00 GiB |\n"
        "| Llama-3-70B | int8 | 166,400 | 650 MiB | 4.96 GiB | 20.31 GiB |\n"
    )


def test_pairs_are_all_or_those_asked_for():
    assert len(pairs()) == 49
    assert pairs()[0] == ("fp", "fp")
    assert {key for key, _ in pairs("int6")} == {"int6"}
    assert pairs("int6", "int4") == [("int6", "int4")]
