"""Run the Triton server of an environment's `nvidia-pytriton` wheel: `python triton_server.py FOLDER [SPANS_URL]`.

Standard library only. The wheel's own API is not used: it holds the plain server with the Python backend. That backend
looks for a stub of the interpreter's version beside itself, and the stub for that interpreter's shared library and for
the libraries that the wheel brings; a copy in FOLDER has them together, and leaves the environment as it was.

With SPANS_URL it traces what brings a `traceparent`, and sends the spans there.

Prints one JSON line with the ports once the server is ready, and passes SIGTERM on.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
READY_S = 60.0


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def prepare(folder):
    """The server's folder in the environment, after the backend's copy is complete."""
    packages = Path(sysconfig.get_paths()["purelib"])
    server = packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        sys.exit(f"the wheel has no Python backend for Python {version}")
    backend = folder / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend, dirs_exist_ok=True)
    (backend / stub.name).write_bytes(stub.read_bytes())
    (backend / stub.name).chmod(0o755)
    shutil.copytree(HERE / "triton_models", folder / "models", dirs_exist_ok=True)
    for name in ("double_alone", "patient"):
        shutil.copytree(HERE / "triton_models" / "double", folder / "models" / name, dirs_exist_ok=True)
    config = (HERE / "triton_models" / "double" / "config.pbtxt").read_text()
    # The same model, each request on its own.
    alone = [
        line for line in config.replace('"double"', '"double_alone"').splitlines() if "dynamic_batching" not in line
    ]
    (folder / "models" / "double_alone" / "config.pbtxt").write_text("\n".join(alone))
    # And one whose batcher waits long for a second request.
    patient = config.replace('"double"', '"patient"').replace("microseconds: 4000", "microseconds: 120000")
    (folder / "models" / "patient" / "config.pbtxt").write_text(patient)
    return packages, server


def trace_flags(url):
    """`rate=0` draws no requests of its own; one with a propagated context is traced whatever the rate says."""
    settings = [
        "mode=opentelemetry",
        "rate=0",
        "level=TIMESTAMPS",
        f"opentelemetry,url={url}",
        "opentelemetry,bsp_schedule_delay=200",
    ]
    return [f"--trace-config={setting}" for setting in settings]


def start(folder, spans_url):
    packages, server = prepare(folder)
    http, grpc, metrics = free_ports(3)
    libraries = [sysconfig.get_config_var("LIBDIR") or "", str(packages / "nvidia_pytriton.libs")]
    env = dict(
        os.environ,
        PYTHONPATH=str(packages),
        VIRTUAL_ENV=sys.prefix,
        PATH=os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]]),
        LD_LIBRARY_PATH=os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).strip(os.pathsep),
    )
    flags = {
        "model-repository": folder / "models",
        "backend-directory": folder / "backends",
        "http-address": "127.0.0.1",
        "http-port": http,
        "grpc-address": "127.0.0.1",
        "grpc-port": grpc,
        "metrics-address": "127.0.0.1",
        "metrics-port": metrics,
        "allow-gpu-metrics": "false",
        "exit-timeout-secs": 2,
    }
    binary = server / "bin" / "tritonserver"
    binary.chmod(binary.stat().st_mode | 0o111)
    # What the models print and what the server logs, in one place.
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [
                str(binary),
                *(f"--{name}={value}" for name, value in flags.items()),
                *(trace_flags(spans_url) if spans_url else []),
            ],
            env=env,
            stdout=log,
            stderr=log,
        )
    return child, {"url": f"http://127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}", "metrics": metrics}


def wait_ready(child, url):
    until = time.monotonic() + READY_S
    while time.monotonic() < until and child.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    return False


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    child, where = start(folder, sys.argv[2] if len(sys.argv) > 2 else "")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    if not wait_ready(child, where["url"]):
        child.kill()
        sys.exit((folder / "log").read_text(errors="replace")[-4000:])
    print(json.dumps({"ready": True, **where, "pid": child.pid}), flush=True)
    child.wait()


if __name__ == "__main__":
    main()
