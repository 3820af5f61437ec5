"""A page of one language on a tiny server, with what its panels are looked at and pressed by."""

import re
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from kvchat.wording import say
from tests.ui.served import Tiny


class Screen:
    def __init__(self, context: BrowserContext, tiny: Tiny, lang: Any) -> None:
        self.tiny, self.lang = tiny, lang
        self.troubles: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("console", self._note)
        self.page.goto(f"{tiny.url}/{lang}/")
        self.page.wait_for_selector("#kv-input")
        self.stage("ready")

    def _note(self, message: Any) -> None:
        if message.text.startswith("no words for"):
            self.troubles.append(message.text)

    def say(self, code: str, **facts: object) -> str:
        return say(code, self.lang, **facts)

    def stage(self, stage: str) -> None:
        self.page.wait_for_function(f"kvchat.frame?.runtime?.stage === '{stage}'")

    def tab(self, name: str) -> Any:
        self.page.evaluate(f"kvchat.panel.open('{name}')")
        return self.page.locator(f"#kv-body-{name}")

    def press(self, code: str, **facts: object) -> None:
        self.page.get_by_role("button", name=self.say(code, **facts), exact=True).click()

    def fits(self) -> int:
        """Tokens that the drawer says would fit."""
        most = self.page.locator(".kv-outlook-most")
        expect(most).to_contain_text(re.compile(r"[0-9]"))
        text = most.inner_text()
        return int(re.sub(r"\D", "", text))

    def apply(self) -> None:
        self.press("ui.settings.apply")
        button = self.page.get_by_role("button", name=self.say("ui.settings.apply"), exact=True)
        expect(button).to_be_disabled()
