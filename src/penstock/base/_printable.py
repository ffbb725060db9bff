"""Names and texts as they are printed: without the secrets of URLs, and without characters that steer a terminal.

All that the library prints goes through `printable`: errors (`base/_errors.py`), the log (`PrintableRecords`), names of
files, steps and reports, the quarantine file, the names of kept files. A URL keeps its scheme, host, path and the names
of its parameters: `https://***@host/a.tar?X-Amz-Signature=***`.
"""

import logging
import re
from typing import Any, Final, final

# The user and password before a host. A key may hold slashes, and then it follows a colon that begins no port.
_USER: Final = re.compile(r"(://)(?:[^\s/?#\"'<>]*|[^\s/?#:@\"'<>]*:(?!:|\d{1,5}(?:[/?#]|$))[^\s?#:\"'<>]*)@")
_QUERY: Final = re.compile(r"([\w+.-]*://[^\s?#\"'<>]*)\?([^\s#\"'<>]*)")
_FRAGMENT: Final = re.compile(r"(://[^\s#\"'<>]*)#([^\s\"'<>]*=[^\s\"'<>]*)")
# Parameters of a URL without its beginning, as in the words of a server, and the elements of an answer of S3.
_PARAMETER: Final = re.compile(
    r"([?&;](?:x-amz-\w+(?:-\w+)*|x-goog-\w+(?:-\w+)*|awsaccesskeyid|googleaccessid|sig|signature|policy|"
    r"\w*(?:token|secret|password|passwd|api_?key|credential)\w*)=)(?!\*\*\*)[^\s&;#\"'<>]+",
    re.IGNORECASE,
)
_ELEMENT: Final = re.compile(r"<(AWSAccessKeyId|SignatureProvided|StringToSign\w*|CanonicalRequest\w*)>[^<]*<")
_STEERING_CODES: Final = (
    *range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F),
    *range(0x2066, 0x206A), *range(0xDC80, 0xDCA0),
)  # fmt: skip
_STEERING: Final = re.compile(f"[{''.join(map(chr, _STEERING_CODES))}]")
_ESCAPES: Final = {code: chr(code).encode("unicode_escape").decode() for code in _STEERING_CODES}
_SECRET_NAME: Final = re.compile(
    r"key|secret|token|password|passwd|credential|sas|auth|cookie|signature(?!_version)", re.IGNORECASE
)
# Values of such options that say how to log in: gcsfs's `token`, WebHDFS's and HTTP's kinds of `auth`.
_NO_SECRETS: Final = frozenset(
    {"google_default", "browser", "anonymous", "default", "kerberos", "bearer", "digest", "negotiate", "unsigned"}
)
_LEAST_LENGTH: Final = 6

_secrets: set[str] = set()
"""Values of storage options that are secret; clients mention them in their words."""


def printable(text: str, *, has_lines: bool = False) -> str:
    """Returns a text without secrets, and with escapes for characters that steer a terminal.

    Args:
        text: A name, a URL, or words that mention some.
        has_lines: Keeps line breaks and tabs, which belong into a text and not into a name.
    """
    text = without_secrets(text)
    if not text.isprintable():
        if _STEERING.search(text):
            text = text.translate(_ESCAPES)
        if not has_lines:
            text = text.replace("\n", "\\n").replace("\t", "\\t")
    return text


def without_secrets(text: str) -> str:
    """Returns a text without the secrets of URLs, and those of storage options."""
    if "://" in text:
        text = _USER.sub(r"\1***@", text)
        text = _QUERY.sub(_without_values, text)
        text = _FRAGMENT.sub(r"\1#***", text)
    if "=" in text:
        text = _PARAMETER.sub(r"\1***", text)
    if "</" in text:
        text = _ELEMENT.sub(r"<\1>***<", text)
    for secret in sorted(_secrets, key=len, reverse=True):  # a shorter one may be a part of a longer one
        text = text.replace(secret, "***")
    return text


def keep_secret(options: Any) -> None:
    """Notes values of storage options, so that no text has them: those whose names say that they are secret."""
    for name, value in options.items():
        _keep(value, is_secret=_SECRET_NAME.search(str(name)) is not None)


def _keep(value: Any, *, is_secret: bool) -> None:
    if isinstance(value, dict):
        keep_secret(value)
    elif hasattr(value, "_asdict"):  # such as `aiohttp.BasicAuth`
        keep_secret(value._asdict())
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            _keep(each, is_secret=is_secret)
    elif is_secret and isinstance(value, (str, bytes, bytearray)):
        text = value if isinstance(value, str) else repr(bytes(value))[2:-1]
        if len(text) >= _LEAST_LENGTH and text.lower() not in _NO_SECRETS:
            _secrets.add(text)


@final
class PrintableRecords(logging.Filter):
    """Makes records of a log printable."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        if (shown := printable(said, has_lines=True)) != said:
            record.msg, record.args = shown, None
        return True


def _without_values(found: "re.Match[str]") -> str:
    place, query = found[1], found[2]
    is_web = re.search(r"https?://[^\s]*$", place) is not None
    if "=" not in query and not is_web:  # a `?` of a pattern
        return found[0]
    end = query[len(query.rstrip(".,:;)]}")) :]
    parts = (part.partition("=") for part in re.split("[&;]", query.removesuffix(end)) if part)
    return f"{place}?{'&'.join(f'{name}=***' if sign else '***' for name, sign, _ in parts)}{end}"
