#!/usr/bin/env bash
# Make .venv and install the pinned packages of one level: venv | demo | dev.
# Safe to interrupt and to run again: the stamp that make looks at is written last.
set -euo pipefail
cd "$(dirname "$0")/.."
level=${1:?usage: tools/setup.sh venv|demo|dev}

say() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }
stop() { printf '[setup] %s\n' "$*" >&2; exit 1; }

python=python3.12
"$python" --version >/dev/null 2>&1 || stop "Python 3.12 is missing. On Debian 13 or Ubuntu 24.04: sudo apt install python3.12 python3.12-venv; elsewhere pyenv install 3.12."
"$python" -c 'import ensurepip, venv' 2>/dev/null || stop "Python's venv module is missing: sudo apt install python3.12-venv"

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
  say "creating .venv with $("$python" --version)"
  rm -rf .venv
  "$python" -m venv .venv
fi
.venv/bin/uv --version >/dev/null 2>&1 || { say "installing uv into .venv"; .venv/bin/python -m pip install --quiet --disable-pip-version-check uv; }
[ "$level" = venv ] && exit 0

if [ "$level" = demo ] && [ -f .venv/.dev ] && [ .venv/.dev -nt requirements/dev.txt ]; then
  say "the development environment holds everything the demo needs"
else
  count=$(grep -c '==' "requirements/$level.txt")
  say "installing $count pinned packages from requirements/$level.txt (the first time this downloads about 3 GB, most of it torch)"
  .venv/bin/uv pip sync --require-hashes "requirements/$level.txt"
fi
say "installing flowrl itself, editable"
.venv/bin/uv pip install --quiet --no-deps --editable .
.venv/bin/python -c 'import mujoco' 2>/dev/null || stop "MuJoCo does not import; on Debian or Ubuntu: sudo apt install libgl1 libegl1"
touch ".venv/.$level"
say "done"
