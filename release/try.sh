#!/usr/bin/env bash
# Runs what a new user runs first: checks the installation, trains on handwritten digits, and
# verifies the model, with the privlearn on the PATH or in the environment VENV, and in a folder of
# its own, so that no file of the repository takes part.
# usage: try.sh [VENV]
set -euo pipefail
if [ $# -gt 0 ]; then
  bin="$(cd "$1" && pwd)/bin"
  if [ ! -d "$bin" ]; then bin="${bin%/bin}/Scripts"; fi  # on Windows
  PATH="$bin:$PATH"
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python -c "import platform, privlearn, torch; print(
    'privlearn', privlearn.__version__, 'torch', torch.__version__,
    'Python', platform.python_version(), 'on', platform.platform())"
privlearn selfcheck
privlearn train --data digits --examples 1437 --epsilon 4 --out model
privlearn verify model
