"""Uploads: the multipart body with which a recording goes to a server that transcribes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.model.errors import InputError
from tailrace.probe.request import Ask, Options
from tailrace.workload.audio import wav, wav_seconds
from tailrace.workload.text import digest

BOUNDARY: Final = "tailrace-9a1f40c77b2e4d56"
"""Not in the files: a RIFF file that holds it would have been made for it."""
CONTENT_TYPE: Final = f"multipart/form-data; boundary={BOUNDARY}"


class Recording(NamedTuple):
    """One WAV file."""

    name: str
    content: bytes
    seconds: float


def read_recordings(paths: Sequence[str]) -> list[Recording]:
    """The WAV files named, and those in the folders named, by name. InputError for one that cannot be used."""
    out: list[Recording] = []
    for given in paths:
        path = Path(given).expanduser()
        try:
            files = sorted(path.glob("*.wav")) if path.is_dir() else [path]
            if not files:
                raise InputError("no .wav file is in there", place=given, remedy="Give --audio-file WAV files")
            for file in files:
                content = file.read_bytes()
                out.append(Recording(file.name, content, wav_seconds(content, place=str(file))))
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror or error})", place=given, remedy="Give --audio-file WAV files"
            ) from None
    return out


class Uploads:
    """Composes requests for transcriptions; given recordings are sent in turn, else each has its own sound."""

    def __init__(
        self, options: Options, recordings: Sequence[Recording] = (), *, seed: int = 0, nonce: str = ""
    ) -> None:
        self.options = options
        self.recordings = recordings
        self.seed = seed
        self.nonce = nonce
        fields = {"model": options.model, "response_format": "json"}
        if options.stream:
            fields["stream"] = "true"
            if options.include_usage:
                fields["stream_include_usage"] = "true"  # vLLM's name; others pass over it
        fields |= {key: _field(value) for key, value in options.extra_body.items()}
        self._head = "".join(
            f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
            for key, value in fields.items()
        ).encode()

    def recording(self, ask: Ask) -> Recording:
        """What a request sends."""
        if self.recordings:
            return self.recordings[ask.number % len(self.recordings)]
        length = ask.audio_ms or 1000
        mark = digest(self.seed, self.nonce, f"audio {ask.number}")
        return Recording(f"{ask.number}.wav", wav(self.seed, mark, length), length / 1000)

    def seconds(self, ask: Ask) -> float:
        """How long what a request sends is."""
        if self.recordings:
            return self.recordings[ask.number % len(self.recordings)].seconds
        return (ask.audio_ms or 1000) / 1000

    def __call__(self, ask: Ask) -> bytes:
        """The body."""
        found = self.recording(ask)
        name = found.name.replace('"', "_").replace("\r", "_").replace("\n", "_")
        return b"".join(
            (
                self._head,
                f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n'
                "content-type: audio/wav\r\n\r\n".encode(),
                found.content,
                f"\r\n--{BOUNDARY}--\r\n".encode(),
            )
        )


def _field(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
