"""What a browser is told of the page as a program: its name and icon, so that it can be installed.

gradio's page links to `/manifest.json` whether there is one or not, and its own one (`pwa=True`)
would stand below each language. Knows no chat.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvchat.ui.static_files import ICON, text_of

_ICON = {"src": "/icon.svg", "sizes": "any", "type": "image/svg+xml", "purpose": "any"}
_MANIFEST = {
    "id": "/",
    "name": "kvchat",
    "start_url": "/",
    "scope": "/",
    "display": "standalone",
    "background_color": "#ffffff",
    "theme_color": "#2459d6",
    "icons": [_ICON],
}
_HEADERS = {"cache-control": "private, max-age=86400"}


async def manifest(_request: Request) -> Response:
    return JSONResponse(_MANIFEST, headers=_HEADERS, media_type="application/manifest+json")


async def icon(_request: Request) -> Response:
    return Response(text_of(ICON), headers=_HEADERS, media_type="image/svg+xml")
