"""`tailrace bench`: the options under `Which requests` that describe more than lengths."""

from __future__ import annotations

from typing import Annotated, Final

import typer

_WORK: Final = "Which requests"


def _option(text: str, *names: str) -> object:
    return typer.Option(*names, help=text, rich_help_panel=_WORK)


Endpoint = Annotated[
    str,
    _option("chat, completions, responses, messages, embeddings, transcriptions, or a path; else the URL's end says."),
]
TemplateFile = Annotated[
    str | None,
    _option(
        "File with the body of a request to any URL, with places: {{prompt}}, {{model}}, {{max_tokens}}, "
        "{{request_id}}, {{messages}}."
    ),
]
DialectName = Annotated[
    str, _option("How a template's answers are read: chat, messages, tgi, sglang, triton, any, and so on.")
]
Prompt = Annotated[str | None, _option("The text of every prompt.")]
MaxTokens = Annotated[str | None, _option("The same as --output-tokens.")]
Natural = Annotated[
    bool, _option("Let answers end where the model ends them; lengths are then the most they may have.")
]
TokenizerPath = Annotated[
    str, _option("The model's tokenizer.json or its folder: prompts are then exact in tokens.", "--tokenizer")
]
TurnCount = Annotated[
    str | None, _option("Turns of a session, 4, 3-8 or 5~0.5; its history grows with the real answers.")
]
ThinkTime = Annotated[str | None, _option("From an answer to the next turn: 5s, 2s-10s or 5s~0.8 (log-normal).")]
Conversations = Annotated[
    str | None, _option("JSON lines of recorded chats (ShareGPT or messages) whose users' messages are asked.")
]
PrefixPool = Annotated[int | None, _option("So many shared prefixes, each of --shared-prefix or by --prefix-hit.")]
PrefixHit = Annotated[float | None, _option("Share of all prompt tokens that a prefix cache is to find, 0 to 0.98.")]
PrefixZipf = Annotated[float, _option("How unequal the prefixes' use is: 0 not at all, 1 as words are.")]
Cancel = Annotated[
    list[str] | None, _option("Clients that leave: 'after 5 tokens:0.2' or 'after 2s:0.1' (a share). Repeatable.")
]
AudioLength = Annotated[str | None, _option("Length of synthetic recordings: 10s, 5s-30s or 10s~0.5.")]
AudioFile = Annotated[list[str] | None, _option("WAV file, or a folder of them, to be transcribed in turn.")]
Batch = Annotated[int, _option("Inputs in each request for embeddings.")]
WorkloadFile = Annotated[
    str | None, _option("YAML or JSON file that describes classes with all of this and their objectives.")
]
Repeat = Annotated[
    bool,
    _option(
        "One fixed prompt at temperature 0, first alone, then --concurrency at once: how much of the spread is the "
        "engine's own, and are the answers the same?"
    ),
]
Records = Annotated[
    str | None,
    _option("Records or a run file: without a load of your own, so many at once as three quarters of its peak."),
]
