"""`GET /admin/docs`: the admin API in a browser, which asks this proxy for all that it shows, and nobody else."""

from __future__ import annotations

import importlib.resources

from fastapi import APIRouter, HTTPException, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

docs_router = APIRouter(prefix="/admin/docs", include_in_schema=False)

_SCRIPT, _STYLE, _ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"
_TYPES = {_SCRIPT: "text/javascript", _STYLE: "text/css", _ICON: "image/png"}
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)
"""The page's few lines of script stand in it; whatever they ask for comes from here."""


@docs_router.get("")
def docs() -> HTMLResponse:
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Slipstream",
        swagger_js_url=f"docs/{_SCRIPT}",
        swagger_css_url=f"docs/{_STYLE}",
        swagger_favicon_url=f"docs/{_ICON}",
    )
    page.headers["content-security-policy"] = _POLICY
    return page


@docs_router.get("/{name}")
def docs_file(name: str) -> Response:
    """A file of Swagger UI, of the package that carries it; FastAPI's own page has them from a CDN."""
    if name not in _TYPES:
        raise HTTPException(404)
    data = importlib.resources.files("fastapi_offline").joinpath("static", name).read_bytes()
    return Response(data, media_type=_TYPES[name], headers={"cache-control": "max-age=3600"})
