"""`/admin/docs` shows in a browser that reaches nothing but the proxy."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from tests.proxy.running import RunningProxy

_NAMED = re.compile(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""")


def test_the_page_and_what_it_names_come_from_the_proxy(proxy: RunningProxy) -> None:
    page = proxy.client.get("/admin/docs")
    assert page.status_code == 200
    assert "//" not in re.sub(r"//[^\n\"']*\n", "\n", page.text), "no other origin"
    types = {}
    for name in _NAMED.findall(page.text):
        address = urljoin(f"{proxy.url}/admin/docs", name)
        answer = proxy.client.get(address)
        assert answer.status_code == 200, address
        assert len(answer.content) > 1000, address
        types[urlsplit(address).path] = answer.headers["content-type"].partition(";")[0]
    assert types == {
        "/admin/docs/swagger-ui.css": "text/css",
        "/admin/docs/favicon.png": "image/png",
        "/admin/docs/swagger-ui-bundle.js": "text/javascript",
        "/admin/openapi.json": "application/json",
    }
    assert "SwaggerUIBundle" in proxy.client.get("/admin/docs/swagger-ui-bundle.js").text


def test_a_browser_is_told_to_ask_nobody_else(proxy: RunningProxy) -> None:
    policy = proxy.client.get("/admin/docs").headers["content-security-policy"]
    sources = {word for rule in policy.split(";") for word in rule.split()[1:]}
    assert policy.startswith("default-src 'self';")
    assert sources == {"'self'", "'unsafe-inline'", "data:"}


def test_other_files_are_not_served(proxy: RunningProxy) -> None:
    for name in ("redoc.standalone.js", "nothing", "..%2F__init__.py", "%2Fetc%2Fpasswd"):
        assert proxy.client.get(f"/admin/docs/{name}").status_code == 404
