"""The judge: any OpenAI-compatible chat endpoint, asked for a JSON document."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from storage.secrecy import Secrets
from trainer import tokens
from trainer.errors import JudgeRefused, JudgeSilent, JudgeTooLong, JudgeUnreachable

_TIMEOUT = httpx.Timeout(120.0, connect=10.0)
_OF_THIS_GROUP = (400, 413, 422)
"""What the judge says of a request that it cannot take."""
_TOO_LARGE = 413
_TOO_LONG = re.compile(r"context|too long|too many tokens|tokens? (count|limit)|max\w* \w*tokens", re.IGNORECASE)
"""What servers say to a request that does not fit: vLLM, OpenAI, Anthropic and Gemini each have words of their own."""
_OF_THIS_MOMENT = (408, 429)
"""As every status from 500 on: another request may be answered. What is left is meant for whoever sends it."""


@dataclass(frozen=True, slots=True)
class Reply:
    content: str
    """Empty when the judge refused, or said nothing."""
    tokens: int
    """What the judge says that it used, prompt and answer together; where it does not say, about so many."""


class Judge:
    """Asks; whether the answer can be used is for the asker to say."""

    def __init__(self, base_url: str, model: str, api_key: str | None) -> None:
        self.name = model
        self.answers = 0
        """How many requests were answered, whatever with."""
        self.tokens = 0
        """What all of them cost."""
        self._secrets = Secrets(api_key)
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._client = httpx.Client(timeout=_TIMEOUT, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})

    def ask(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> Reply:
        """One request.

        Raises `JudgeUnreachable` (nobody gets an answer), `JudgeSilent` (this request got none) or `JudgeRefused`
        (the answer is none that could be used).
        """
        document = {
            "model": self.name,
            "messages": messages,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "scores", "strict": True, "schema": schema},
            },
        }
        try:
            response = self._client.post(self._url, json=document)
        except httpx.ReadTimeout as error:
            raise JudgeSilent(f"the judge at {self._url} gave no answer in {_TIMEOUT.read:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise JudgeUnreachable(
                f"the judge at {self._url} does not answer ({error or type(error).__name__}): groups wait; "
                f"check SLIPSTREAM_JUDGE_BASE_URL"
            ) from error
        status = response.status_code
        if status in _OF_THIS_GROUP:
            too_long = status == _TOO_LARGE or _TOO_LONG.search(response.text)
            raise (JudgeTooLong if too_long else JudgeRefused)(
                f"the judge answered with {status}: {self._said(response)}"
            )
        if status in _OF_THIS_MOMENT or status >= 500:
            raise JudgeSilent(
                f"the judge at {self._url} answered with {status}: {self._said(response)}", _retry_after(response)
            )
        if status != 200:
            raise JudgeUnreachable(
                f"the judge at {self._url} answered with {status}: {self._said(response)}; groups wait; "
                f"check SLIPSTREAM_JUDGE_BASE_URL, _MODEL and _API_KEY"
            )
        self.answers += 1
        try:
            body = response.json()
            content = body["choices"][0]["message"].get("content")
            used = int((body.get("usage") or {}).get("total_tokens") or 0)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise JudgeRefused(f"the judge's answer is not a chat completion: {self._said(response)}") from error
        # Half a surrogate pair can neither be kept nor sent back.
        text = content.encode("utf-8", "replace").decode() if isinstance(content, str) else ""
        used = used or sum(tokens.count(said) for said in (*(message["content"] for message in messages), text))
        self.tokens += used
        return Reply(text.strip(), used)

    def _said(self, response: httpx.Response) -> str:
        """The first of an answer, without our key: some judges repeat it."""
        return self._secrets.blot(response.text.encode("utf-8", "replace")).decode()[:300]

    def close(self) -> None:
        self._client.close()


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds until the judge wants to be asked again: it gives them, or a date."""
    given = response.headers.get("retry-after", "").strip()
    if given.isdecimal():
        return float(given)
    try:
        return max(parsedate_to_datetime(given).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
