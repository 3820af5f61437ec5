"""The screen of one language as gradio Blocks: where things stand and which event does what.

Parts that move are drawn by the scripts of `static/` inside empty boxes; the chat is gradio's own
component, fed with finished HTML. No gr.State (it holds a stream open for every tab), no timer.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from kvchat.errors import RequestError
from kvchat.ui.asked import read_asked
from kvchat.ui.calls import calls
from kvchat.ui.following import Following
from kvchat.ui.markup import LATEX
from kvchat.ui.transcript import notes
from kvchat.ui.words import problem
from kvchat.wording import Language, say

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

# How often forgotten uploads are looked for, and how old they must be to go: an hour, a day.
_UPLOADS_KEPT_S = (3600, 86_400)
_DELIMITERS: list[dict[str, str | bool]] = [
    {"left": left, "right": right, "display": display} for left, right, display in LATEX
]


def build_ui(conversations: "Conversations", lang: Language) -> gr.Blocks:
    """The whole screen. The conversations are all it talks to."""
    following = Following(conversations, lang)
    published = calls(conversations, following, lang)

    def act(event: gr.EventData) -> Iterator[Any]:
        try:
            asked = read_asked(event._data)
        except RequestError as error:
            yield [], notes(None, (), None, lang, 0) | {"problem": problem(error, lang)}
            return
        for found, around in following.show(asked):
            yield found, around | {"wish": asked.number}
        # gradio sends the last thing once more when a generator ends, and that may come late
        yield gr.skip(), gr.skip()

    screen = gr.Blocks(title=say("ui.title", lang), fill_width=True, delete_cache=_UPLOADS_KEPT_S)
    with screen:
        with gr.Row(elem_id="kv-app"):
            with gr.Column(elem_id="kv-side"):
                _box("chats")
            with gr.Column(elem_id="kv-main"):
                _box("top")
                _box("bar")
                with gr.Row(elem_id="kv-body"):
                    with gr.Column(elem_id="kv-talk"):
                        chat = _chat()
                        _box("composer")
                    _box("panel")
        link = gr.HTML(
            elem_id="kv-link",
            html_template="",
            js_on_load="kvchat.connect(props, server, upload, watch, (it) => trigger('act', it))",
            apply_default_css=False,
            server_functions=published,
        )
        link.act(
            act,
            outputs=[chat, link],
            show_progress="hidden",
            trigger_mode="multiple",
            concurrency_limit=None,
            api_visibility="private",
        )
    return screen


def _box(name: str) -> gr.HTML:
    """An empty box that the script `kvchat.draw.NAME` fills once and keeps up to date itself."""
    return gr.HTML(
        elem_id=f"kv-{name}",
        html_template="",
        js_on_load=f"kvchat.draw.{name}(element)",
        apply_default_css=False,
    )


def _chat() -> gr.Chatbot:
    options: dict[str, Any] = {
        "elem_id": "kv-chat",
        "show_label": False,
        "container": False,
        "height": "100%",
        "render_markdown": False,  # markup.py has done it
        "sanitize_html": True,
        "group_consecutive_messages": False,
        "latex_delimiters": _DELIMITERS,
        "buttons": [],
        "feedback_options": None,
        "autoscroll": False,  # scroll.js does it
    }
    return gr.Chatbot(**options)
