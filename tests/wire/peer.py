"""nginx as an independent proxy in front of the same engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conftest import nginx_path

_CONFIG = """
daemon off;
master_process off;
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 64m;
  upstream engine {{ server {engine}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_next_upstream off;
      proxy_read_timeout 3s;
    }}
  }}
}}
"""


@asynccontextmanager
async def nginx(engine_url: str, folder: Path) -> AsyncIterator[str]:
    """The URL of an nginx that relays to `engine_url`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, engine=engine_url.removeprefix("http://"), port=port))
    program = nginx_path()
    assert program is not None
    child = await asyncio.create_subprocess_exec(
        program, "-p", str(folder), "-c", str(config), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                assert child.returncode is None, (folder / "error.log").read_text()
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()
