"""Settings, models and the calculator in a real browser, over real conversations with a tiny model:
what is said before a change is what is there after it. In both languages.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from kvchat.models.catalog import catalog
from kvchat.settings import SCHEMA
from tests.tiny import tiny_folder
from tests.ui.conftest import LANGS, USUAL_MS, Looking, ask
from tests.ui.screen import Screen
from tests.ui.served import Tiny

pytestmark = pytest.mark.browser
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_folder("qwen3", folder / "more" / "other", seed=3)
    found = Tiny(folder, memory_budget="1600 KiB", model_folders=[str(folder / "more")])
    yield found
    found.end()


@pytest.fixture
def screen(chromium: Browser, tiny: Tiny, request: pytest.FixtureRequest) -> Iterator[Screen]:
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    found = Screen(context, tiny, request.getfixturevalue("lang"))
    yield found
    context.close()
    expect.set_options(timeout=USUAL_MS)
    talks = tiny.talks
    talks.apply({}, [name for name in SCHEMA if name not in ("model", "model_folders")])
    talks.apply({"memory_budget": "1600 KiB", "headroom": 0, "temperature": 0})
    if talks.status()["model"] != tiny.model.name or talks.held.pending():
        talks.loading.change({"model": str(tiny.model), "dtype": "auto", "weights": "as-is"})
        assert talks.loading.worker.is_loaded(60)
    assert found.troubles == []


@LANGS
def test_a_slider_says_what_it_would_mean_and_so_it_is(screen: Screen, lang: str) -> None:
    page = screen.page
    screen.tab("settings")
    expect(page.locator(".kv-outlook-most")).to_contain_text(re.compile(r"\d"))
    before = screen.fits()
    # a frame is shared by tabs and may be as old as a second: from before these settings
    page.wait_for_function(f"kvchat.frame.kv.capacity_tokens === {before}")
    page.fill("#kv-set-memory_budget", "1900 KiB")
    expect(page.locator(".kv-gain")).to_contain_text("+")
    then = screen.fits()
    assert page.locator(".kv-gain").inner_text() == f"+{then - before:,}"
    expect(page.locator(".kv-outlook")).to_contain_text(screen.say("ui.effect.now"))
    page.evaluate(
        "() => { const call = kvchat.call; window.kvAsked = []; kvchat.call = (name, sent) => {"
        " kvAsked.push([name, sent?.chat].join()); return call(name, sent) } }"
    )
    screen.apply()
    page.wait_for_function("kvAsked.includes('apply,') && kvAsked.includes('chats,')")
    page.wait_for_function(f"kvchat.frame.kv.capacity_tokens === {then}")
    said = str(page.locator(".kv-bar-room").get_attribute("title"))
    assert f"{then:,}" in said
    expect(page.locator(".kv-outlook")).to_contain_text(said)
    models = screen.tab("models")
    expect(models.locator(".kv-here .kv-fits").first).to_contain_text(said)
    room = screen.say("ui.whatif.room.budget", budget="1.9 MiB")
    expect(models.get_by_text(room)).to_be_visible()
    expect(screen.tab("whatif").locator(".kv-if-out")).to_contain_text(said)
    page.evaluate("kvAsked.length = 0; kvchat.outlook.again = () => {}")
    screen.tab("settings")
    page.wait_for_function("kvAsked.includes('foretell,')")
    page.evaluate("kvchat.open('another')")  # pages are told by its documents
    page.wait_for_function("kvAsked.includes('foretell,another')")
    page.evaluate("kvchat.newChat()")
    source = page.locator("[data-name=memory_budget] .kv-source")
    expect(source).to_contain_text(screen.say("ui.source.file"))
    slider = page.locator("[data-name=memory_budget] input[type=range]")
    slider.focus()
    slider.press("ArrowRight")
    expect(page.locator("#kv-set-memory_budget")).to_have_value(re.compile(r"MiB$"))
    expect(page.locator(".kv-outlook")).to_contain_text(screen.say("ui.outlook.limit.length"))


@pytest.mark.parametrize("lang", ["ko"])
def test_a_budget_under_the_open_chat_says_what_it_leaves_out(
    screen: Screen, tiny: Tiny, lang: str
) -> None:
    talks, page = tiny.talks, screen.page
    talks.apply({"max_new_tokens": 12})  # whatever a test before left there
    chat = talks.new_chat()
    for turn in range(1, 7):
        talks.ask(chat, f"What does the memory of this chat hold, and why? {turn}").wait_ended(60)
    page.evaluate(f"kvchat.open('{chat}')")
    screen.tab("settings")
    line = page.locator(".kv-outlook-chat")
    expect(line).to_be_hidden()
    page.fill("#kv-set-memory_budget", "1150 KiB")
    expect(line).to_contain_text(screen.say("ui.outlook.chat.read", tokens="").rstrip(" :"))
    page.fill("#kv-set-memory_budget", "2 MiB")
    expect(line).to_be_hidden()


@LANGS
def test_formats_are_chosen_apart_and_say_what_they_cost(screen: Screen, lang: str) -> None:
    page = screen.page
    screen.tab("settings")
    before = screen.fits()
    field = page.locator("[data-name=seal_format]")
    field.locator("[data-part=key]").get_by_role("radio", name="INT6", exact=True).click()
    field.locator("[data-part=value]").get_by_role("radio", name="INT4", exact=True).click()
    expect(page.locator("#kv-set-seal_format-note")).to_contain_text("%")
    expect(page.locator(".kv-cost").first).to_contain_text("INT6/INT4")
    expect(page.locator(".kv-outlook")).to_contain_text(screen.say("ui.effect.next_answer"))
    assert screen.fits() != before or before == 2048
    screen.apply()
    assert screen.tiny.talks.settings.seal_format == "int6/int4"
    ask(page, "What is a fox?")
    page.wait_for_function("kvchat.frame.turns.length >= 1")


@LANGS
def test_a_pair_that_nobody_measured_is_measured_when_asked(screen: Screen, lang: str) -> None:
    page = screen.page
    screen.tiny.talks.apply({"memory_budget": "auto"})
    screen.tab("settings")
    field = page.locator("[data-name=seal_format]")
    name = {"en": "INT5", "ko": "INT2"}[lang]
    for part in ("key", "value"):
        field.locator(f"[data-part={part}]").get_by_role("radio", name=name, exact=True).click()
    if lang == "en":  # the exact one is known by what is less exact
        expect(page.locator("#kv-set-seal_format-note")).to_contain_text("INT4")
        return
    exactly = page.get_by_text("INT2", exact=True)  # before the second part: INT2 with another
    cost = page.locator(".kv-cost").filter(has=exactly)
    cost.get_by_role("button", name=screen.say("ui.measure")).click()
    until = time.monotonic() + PATIENCE_MS / 1000
    while "int2/int2" not in screen.tiny.talks.verdicts() and time.monotonic() < until:
        page.wait_for_timeout(100)
    verdict = screen.tiny.talks.verdicts()["int2/int2"]
    expect(cost).to_contain_text(f"{verdict.same_percent:.1f}")


@LANGS
def test_what_needs_a_reload_says_so_and_is_reloaded_here(screen: Screen, lang: str) -> None:
    page = screen.page
    ask(page, "What is a fox?")
    weights = page.evaluate("kvchat.frame.weights_bytes")
    screen.tab("settings")
    page.locator("[data-name=dtype]").get_by_role("radio", name="bf16").click()
    expect(page.locator(".kv-outlook")).to_contain_text(screen.say("ui.effect.reload"))
    screen.apply()
    assert page.evaluate("kvchat.frame.weights_bytes") == weights
    expect(page.locator(".kv-pending")).to_contain_text(SCHEMA["dtype"].label[screen.lang])
    screen.press("ui.settings.reload_now")
    page.wait_for_function(f"kvchat.frame.weights_bytes > 0.4 * {weights} && "
                           f"kvchat.frame.weights_bytes < 0.6 * {weights}")  # fmt: skip
    expect(page.locator(".kv-pending")).to_be_hidden()
    expect(page.locator(".kv-ask")).to_have_text("What is a fox?")
    ask(page, "And a dog?")
    assert len(page.locator(".kv-text").all()) == 2


@LANGS
def test_presets_one_model_resets_and_search(screen: Screen, lang: str) -> None:
    page = screen.page
    screen.tab("settings")
    page.locator("[data-preset=cpu]").click()
    expect(page.locator("#kv-set-prefill_chunk")).to_have_value("256")
    expect(page.locator(".kv-preset-changes")).to_contain_text("512 → 256")
    page.get_by_role("button", name=screen.say("ui.settings.undo"), exact=True).click()
    expect(page.locator("[data-preset=cpu]")).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".kv-preset-changes")).to_have_count(0)
    page.locator("[data-preset=cpu]").click()
    assert screen.tiny.talks.settings.prefill_chunk == 512
    page.locator("#kv-only-model").check()
    screen.apply()
    talks = screen.tiny.talks
    assert talks.settings.prefill_chunk == 256
    assert talks.held.source("prefill_chunk") == "model"
    row = page.locator("[data-name=prefill_chunk]")
    expect(row.locator(".kv-source")).to_contain_text(screen.say("ui.source.model", model="model"))
    row.get_by_role("button", name=screen.say("ui.settings.reset")).click()
    expect(page.locator("#kv-set-prefill_chunk")).to_have_value("512")
    assert talks.settings.prefill_chunk == 256
    screen.apply()
    assert (talks.settings.prefill_chunk, talks.held.source("prefill_chunk")) == (512, "schema")
    page.locator(".kv-find").fill(SCHEMA["top_k"].label[screen.lang])
    expect(page.locator(".kv-field[data-name]:visible")).to_have_count(1)
    page.locator(".kv-find").fill("zzz")
    expect(page.get_by_text(screen.say("ui.settings.not_found"))).to_be_visible()
    page.locator(".kv-find").fill("")
    page.locator("[data-name=ladder] li").first.get_by_role(
        "button", name=screen.say("ui.down")
    ).click()
    screen.press("ui.settings.reset_all")
    screen.apply()
    assert talks.settings.max_new_tokens == 1024


@LANGS
def test_a_wrong_value_is_told_beside_its_field(screen: Screen, lang: str) -> None:
    page = screen.page
    screen.tab("settings")
    page.fill("#kv-set-temperature", "9")
    page.fill("#kv-set-memory_budget", "6 GB")
    for name in ("temperature", "memory_budget"):
        expect(page.locator(f"[data-name={name}] .kv-mistake")).to_be_visible()
        expect(page.locator(f"#kv-set-{name}")).to_have_attribute("aria-invalid", "true")
    apply = page.get_by_role("button", name=screen.say("ui.settings.apply"), exact=True)
    expect(apply).to_be_disabled()
    expect(page.locator(".kv-outlook")).not_to_contain_text(re.compile(r"^0|0 changes|0개"))
    page.fill("#kv-set-temperature", "0.5")
    expect(page.locator("[data-name=temperature] .kv-mistake")).to_be_hidden()
    expect(apply).to_be_disabled()
    page.fill("#kv-set-memory_budget", "1700 KiB")
    expect(apply).to_be_enabled()
    page.fill("#kv-set-temperature", "9")
    expect(apply).to_be_disabled()
    assert screen.tiny.talks.settings.temperature == 0
    screen.press("ui.settings.undo")
    expect(page.locator("[data-name=temperature] .kv-mistake")).to_be_hidden()


@LANGS
def test_settings_go_out_as_a_file_and_come_in(screen: Screen, lang: str, tmp_path: Path) -> None:
    page = screen.page
    screen.tab("settings")
    with page.expect_download() as download:
        screen.press("ui.settings.export")
    text = Path(download.value.path()).read_text("utf-8")
    assert "memory_budget = 1638400" in text
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("top_k = 7\n")
    bad.write_text("top_k = 'many'\n")
    said = page.locator(".kv-panel-settings .kv-apply .kv-said")
    page.locator(".kv-set-file input").set_input_files(bad)
    expect(said).to_contain_text("bad.toml")
    expect(page.locator("#kv-set-top_k")).to_have_value("0")
    page.locator(".kv-set-file input").set_input_files(good)
    expect(page.locator("#kv-set-top_k")).to_have_value("7")
    assert screen.tiny.talks.settings.top_k == 0
    screen.apply()
    assert screen.tiny.talks.settings.top_k == 7


@LANGS
def test_another_model_is_loaded_let_go_of_and_loaded_again(screen: Screen, lang: str) -> None:
    page = screen.page
    screen.tiny.talks.apply({"memory_budget": "auto"})
    ask(page, "What is a fox?")
    body = screen.tab("models")
    other = body.get_by_role("article", name="other")
    other.get_by_role("button", name=screen.say("ui.models.load")).first.click()
    page.wait_for_function("kvchat.status.model === 'other'")
    screen.stage("ready")
    expect(body.locator(".kv-runs")).to_contain_text("other")
    ask(page, "And a dog?")
    expect(page.locator(".kv-text")).to_have_count(2)
    screen.press("ui.models.unload")
    screen.stage("unloaded")
    expect(body.locator(".kv-runs")).to_contain_text(screen.say("ui.models.none"))
    assert page.evaluate("kvchat.frame.weights_bytes") == 0
    other.get_by_role("button", name=screen.say("ui.models.load")).first.click()
    page.wait_for_function("kvchat.status.model === 'other'")
    screen.stage("ready")


@LANGS
def test_folders_are_added_and_bad_ones_are_told(screen: Screen, lang: str, tmp_path: Path) -> None:
    page = screen.page
    body = screen.tab("models")
    page.fill("#kv-add-folder", str(tmp_path / "nowhere"))
    screen.press("ui.models.add")
    expect(body.locator(".kv-said")).to_contain_text("nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    page.fill("#kv-add-folder", str(tmp_path))
    screen.press("ui.models.add")
    broken = body.get_by_role("article", name="broken")
    expect(broken.locator(".kv-ways .kv-wrong")).to_contain_text("safetensors")
    page.get_by_role("button", name=screen.say("ui.models.forget")).last.click()
    expect(broken).to_have_count(0)


@LANGS
@pytest.mark.parametrize("name", ["models", "whatif"])
def test_a_tab_says_that_it_counts_until_there_is_something(
    screen: Screen, lang: str, name: str
) -> None:
    page = screen.page
    page.evaluate(
        "() => { const call = kvchat.call; kvchat.call = async (name, sent) => {"
        " if (name === 'models') await new Promise((go) => (window.kvGoOn = go));"
        " return call(name, sent) } }"
    )
    body = screen.tab(name)
    said = body.get_by_text(screen.say("ui.models.counting"), exact=True).first
    expect(said).to_be_visible()
    page.evaluate("kvGoOn()")
    shown = ".kv-runs-words" if name == "models" else ".kv-if-items"
    expect(body.locator(shown)).to_be_visible()
    expect(body.locator(".kv-hint", has_text=screen.say("ui.models.counting"))).to_have_count(0)


@LANGS
def test_the_calculator_counts_any_model_on_any_card(screen: Screen, lang: str) -> None:
    page = screen.page
    body = screen.tab("whatif")
    expect(body.locator(".kv-if-items dd").first).to_contain_text("KiB")
    page.select_option("#kv-if-model", "smollm2")
    page.select_option("#kv-if-pair", "int2")
    verdict = body.locator(".kv-if-verdict")
    expect(verdict).to_contain_text(screen.say("ui.whatif.failed", format="INT2"))
    expect(verdict).to_have_class(re.compile("kv-short"))
    mark = screen.say("ui.whatif.cell.failed")
    expect(body.locator("tbody tr", has_text=mark)).to_have_count(1)
    expect(body.locator(".kv-if-legend span", has_text=mark)).to_have_count(1)
    page.select_option("#kv-if-dtype", "fp16")
    expect(body.locator(".kv-if-out")).to_contain_text("fp16")
    page.select_option("#kv-if-pair", "fp")
    page.select_option("#kv-if-model", "Qwen3-8B")
    page.select_option("#kv-if-card", "8")
    expect(body.locator(".kv-if-verdict")).to_have_class(re.compile("kv-short"))
    page.select_option("#kv-if-card", "24")
    expect(body.locator(".kv-if-verdict")).to_have_class(re.compile("kv-fits"))
    expect(body.locator("svg .kv-line")).to_have_count(9)
    expect(body.locator("svg")).to_contain_text(screen.say("ui.whatif.axis.tokens"))
    page.select_option("#kv-if-card", "16")
    expect(body.locator("svg .kv-reach")).to_have_count(1)
    page.select_option("#kv-if-card", "24")
    expect(body.locator("tbody tr")).to_have_count(9)
    page.locator("#kv-if-every").check()
    expect(body.locator("tbody tr")).to_have_count(49)
    page.select_option("#kv-if-card", "own")
    page.fill("#kv-if-own", "ten")
    expect(body.locator(".kv-said")).to_have_text(screen.say("ui.whatif.card.wrong"))
    page.fill("#kv-if-own", "0.02 TiB")
    expect(body.locator(".kv-said")).to_be_empty()
    page.select_option("#kv-if-model", "")
    page.fill("#kv-if-config", "{ broken")
    expect(body.locator(".kv-said")).to_contain_text("config.json")
    page.fill("#kv-if-config", json.dumps(dict(catalog()["phi-4"].config)))
    expect(body.locator(".kv-said")).to_be_empty()
    expect(body.locator(".kv-if-out")).to_contain_text("config.json")


@LANGS
@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_hangs_over_the_edge_and_all_has_names(
    screen: Screen, lang: str, width: int
) -> None:
    page = screen.page
    page.set_viewport_size({"width": width, "height": 780})
    for name in ("settings", "models", "whatif"):
        body = screen.tab(name)
        page.wait_for_timeout(900)
        wide = page.evaluate(
            """[...document.querySelectorAll('#kv-panel *')].filter((one) =>
            one.checkVisibility() && !one.closest('table, .kv-tabs, svg, .kv-unseen') &&
            one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.className)"""
        )
        assert wide == [], name
        nameless = body.evaluate(
            """(body) => [...body.querySelectorAll('button, input, select, textarea')].filter(
            (one) => one.checkVisibility() && !(one.innerText.trim() || one.ariaLabel ||
            one.title || one.labels?.length || one.placeholder))
            .map((one) => one.outerHTML.slice(0, 90))"""
        )
        assert nameless == [], name


def test_every_setting_of_the_schema_is_in_the_drawer(looking: Looking) -> None:
    page = looking.page
    page.keyboard.press("Control+.")
    expect(page.locator(".kv-field[data-name]")).to_have_count(len(SCHEMA))
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    page.fill("#kv-set-temperature", "0.3")
    page.locator("[data-name=document_mode]").get_by_role("radio", name="Passages").click()
    page.locator("[data-name=ladder] li").first.get_by_role("button", name="Move down").click()
    page.locator("[data-name=list_api_chats] input").check()
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".kv-panel-settings .kv-apply .kv-said")).to_contain_text(
        "from the next answer on"
    )
    settings = looking.talks.settings
    assert (settings.temperature, settings.document_mode) == (0.3, "passages")
    assert settings.list_api_chats
    assert settings.ladder[:2] == ("shrink_chunk", "drop_idle")


def test_a_failed_format_cannot_be_chosen_until_it_is_allowed(looking: Looking) -> None:
    page = looking.page
    page.keyboard.press("Control+.")
    field = page.locator("[data-name=seal_format]")
    expect(page.locator("#kv-set-seal_format-note")).to_have_text("Nothing is lost.")
    field.locator("[data-part=value]").get_by_role("radio", name="INT2", exact=True).click()
    failed = field.locator("[data-part=key]").get_by_role("radio", name="INT2", exact=True)
    expect(failed).to_be_disabled()
    expect(failed).to_have_attribute("title", re.compile(r"^Failed on this model.*KL 0\.1550"))
    page.locator("[data-name=allow_unproven] input").check()
    page.get_by_role("button", name="Apply").click()
    expect(failed).to_be_enabled()
