#!/usr/bin/env bash
# Make .venv and install zLLM into it; at once when nothing it depends on has changed.
set -eu
cd "$(dirname "$0")/.."

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "setup: zLLM needs Python 3.11 or newer and found none; install it or name it: PYTHON=/path/to/python3 make setup" >&2
  return 1
}

# The folder is part of the stamp: an environment does not survive being moved.
fingerprint() {
  { pwd && cat pyproject.toml scripts/setup.sh; } | cksum
}

stamp=.venv/zllm-setup.stamp
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint)" ]; then
  exit 0
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  rm -rf .venv
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    echo "setup: $python has no ensurepip; install it (Debian: apt-get install python3-venv)" >&2
    exit 1
  fi
  echo "setup: making .venv with $("$python" --version)"
  "$python" -m venv .venv
fi
rm -f "$stamp"
echo "setup: installing zLLM with its test, WebGPU and hub extras into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,webgpu,hub]'
fingerprint >"$stamp"
