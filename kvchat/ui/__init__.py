"""The screen: chat, memory bar, documents and settings in the browser, in Korean and English.

Talks to the conversations only; live figures come over `/api/live`. Only here: gradio.
"""

from kvchat.ui.mount import mount_options, mount_ui
from kvchat.ui.screen import build_ui

__all__ = ["build_ui", "mount_options", "mount_ui"]
