"""The configuration that `tailrace serve` runs with: a file, or defaults, and what the command line says beside them.

Imports no server, so that a typing error costs no second.
"""

from __future__ import annotations

import msgspec

from tailrace.gateway.config import Config, check, load_config
from tailrace.model.errors import InputError


def settings_from(
    *,
    upstream: str | None = None,
    file: str | None = None,
    listen: str | None = None,
    admin: str | None = None,
    data_dir: str | None = None,
    engine: str | None = None,
    workers: int | None = None,
) -> Config:
    """The configuration: the file's, or the defaults for `upstream`; what is given beside the file wins over it.

    InputError where neither names an engine, or a value is impossible.
    """
    if file is None and upstream is None:
        raise InputError(
            "no engine is named",
            place="--upstream",
            remedy="Give --upstream http://127.0.0.1:8000, or -c FILE with `backends`.",
        )
    if file is None:
        config = Config.for_upstream(upstream or "", engine=engine or "auto")
    else:
        config = load_config(file, upstream=upstream)
        if upstream is not None:
            config.backends = [msgspec.structs.replace(config.backends[0], url=upstream)]
        if engine is not None:
            config.backends = [msgspec.structs.replace(config.backends[0], engine=engine)]
    if listen is not None:
        config.listen = listen
    if admin is not None:
        config.admin = admin
    if data_dir is not None:
        config.records.dir = data_dir
    if workers is not None:
        config.workers = workers
    check(config)
    return config
