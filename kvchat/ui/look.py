"""The theme: gradio's own parts take the colours and fonts that `static/base.css` names."""

import gradio as gr

# Names only: a font given by name is used where it is installed, and never fetched.
FONTS = ["Pretendard", "Noto Sans KR", "Malgun Gothic", "Apple SD Gothic Neo", "system-ui"]
MONO = ["D2Coding", "Cascadia Code", "Consolas", "Menlo", "ui-monospace", "monospace"]


def theme() -> gr.themes.Base:
    """Only what shows before the styles are there needs a value; the rest follows variables."""
    return gr.themes.Base(font=FONTS, font_mono=MONO).set(
        body_background_fill="#ffffff",
        body_background_fill_dark="#0e131b",
        body_text_color="#0f172a",
        body_text_color_dark="#e6eaf0",
    )
