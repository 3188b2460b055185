"""What a server's refusal means. Pure: status, code and text in, a typed error (or a lesson about the server) out."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.agents.openai_wire import Feature
from stepwell.errors import (
    ContentFiltered,
    ContextTooLong,
    InvalidCredentials,
    ModelCallFailed,
    ModelNotFound,
    ModelUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRejected,
)

_TOO_LONG = ("context_length_exceeded", "maximum context length", "context length", "context size", "too many tokens")
_FILTERED = ("content_filter", "content_policy_violation", "responsibleaipolicyviolation", "content management policy")
_NO_CREDIT = ("insufficient_quota", "billing_hard_limit_reached", "exceeded your current quota")
_TRANSIENT_STATUS = frozenset({408, 409})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer that is no reply."""

    model: str
    status: int
    detail: str
    code: str | None = None
    request_id: str | None = None
    retry_after: float | None = None

    def error(self) -> ModelCallFailed:
        kind = self._kind()
        return kind(self.model, self.detail, self.status, self.code, self.request_id, self.retry_after)

    def _kind(self) -> type[ModelCallFailed]:
        said = f"{self.code or ''} {self.detail}".lower()
        if any(word in said for word in _NO_CREDIT):
            return QuotaExhausted
        if self.status == 429:
            return RateLimited
        # Some servers report these as a failure of their own, with a 500.
        if any(word in said for word in _TOO_LONG) or self.status == 413:
            return ContextTooLong
        if any(word in said for word in _FILTERED):
            return ContentFiltered
        if self.status in _TRANSIENT_STATUS or self.status >= 500:
            return ModelUnavailable
        if self.status in (401, 403):
            return InvalidCredentials
        return ModelNotFound if self.status == 404 else RequestRejected


def streamed_refusal(model: str, detail: str, *, code: str | None, kind: str | None) -> Refusal:
    """An error sent in the middle of a stream, where there is no status any more; some servers put it into the code."""
    said = f"{code or ''} {kind or ''}".lower()
    if code is not None and code.isdigit() and 400 <= int(code) < 600:
        status = int(code)
    elif "rate_limit" in said:
        status = 429
    else:
        status = 400 if "invalid_request" in said else 500
    return Refusal(model, status, detail, code or kind)


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """How long the server wants us to wait: `Retry-After-Ms`, else `Retry-After` in seconds or as a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return max(0.0, seconds)
    moment = email.utils.parsedate_tz(value) if value else None
    if moment is None:
        return None
    return max(0.0, email.utils.mktime_tz(moment) - (time.time() if now is None else now))


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and value == value and abs(value) != float("inf") else None


def lesson(error: ModelCallFailed, body: Mapping[str, object]) -> Feature | None:
    """What this server seems to lack, judging by its refusal of `body`; None if it is about something else."""
    said = f"{error.code or ''} {error.detail}".lower()
    form = body.get("response_format")
    if isinstance(form, Mapping) and ("response_format" in said or "json_schema" in said or "json_object" in said):
        return "json_schema" if form.get("type") == "json_schema" else "json_object"
    if "stream_options" in body and "stream_options" in said:
        return "stream_options"
    if "parallel_tool_calls" in body and "parallel_tool_calls" in said:
        return "parallel_tool_calls"
    if "max_completion_tokens" in body and "max_completion_tokens" in said:
        return "max_completion_tokens"
    if "max_tokens" in body and "max_completion_tokens" in said:
        return "max_tokens"
    return None
