"""The admin API: FastAPI, JSON, behind the admin key. `/admin/docs` shows it."""
