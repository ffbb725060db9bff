"""Opens films and sounds by PyAV (FFmpeg)."""

from typing import Any


def version() -> int:
    """That of PyAV, of which the first number tells what it can do."""
    import av

    return int(av.__version__.partition(".")[0])


def open_media(data: Any, formats: str, **options: str) -> Any:
    """Returns a container of PyAV.

    Args:
        data: An open file. FFmpeg gets bytes and no name.
        formats: The containers that may be read. Others, such as playlists, name files and addresses.
        options: Those of the container. As `options` of PyAV before 17, they end the process with some containers.
    """
    import av

    options |= {"format_whitelist": formats, "protocol_whitelist": "none"}
    # Titles that are no text are no error, and from 19 on PyAV takes them of itself.
    errors: Any = {"metadata_errors": "replace"} if version() < 19 else {}
    return av.open(data, container_options=options, **errors)
