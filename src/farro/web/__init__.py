"""farro over HTTP: the API for programs and the dashboard, events as they happen, metrics, and the page itself.

What is done lives in operations; here are only the protocol, its guards and its documents. `app.make` puts it together
from a store, settings and operations; `cli.web` serves it. The contract is docs/http.md and schemas/openapi.json.
"""
