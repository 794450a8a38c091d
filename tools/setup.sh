#!/usr/bin/env bash
# Make .venv with the package and one of its extras: tools/setup.sh quickstart|dev
# Does nothing when it has been done for the same pyproject.toml and constraints.
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:-quickstart}
want=$(cat pyproject.toml constraints.txt tools/setup.sh | sha256sum | cut -c1-16)
stamp=".venv/.polo-$extra-$want"
[ -f "$stamp" ] && exit 0

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

say "setting up .venv (once; a few minutes, most of it downloading torch)"
python=""
for candidate in "${PYTHON:-python3}" python3.12 python3.11; do
  if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "PoLO needs Python 3.11 or 3.12; set PYTHON to one" >&2
  exit 2
fi
if [ ! -x .venv/bin/python ]; then
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    tools/system-packages.sh python3-venv ||
      { echo "$python cannot make virtual environments: install python3-venv" >&2; exit 2; }
  fi
  "$python" -m venv .venv
fi

# Lines that show how it goes; the rest of pip's output is kept for when it fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  if ! .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt "$@" 2>&1 |
      tee "$log" | { grep --line-buffered -E '^(Collecting|Installing|Successfully)' || true; } |
      cut -c1-110; then
    tail -n 30 "$log" >&2
    exit 2
  fi
}
say "installing torch (CPU)"
install "torch==2.13.0"
say "installing PoLO and what it needs"
install -e ".[$extra]"
rm -f .venv/.polo-"$extra"-*
touch "$stamp"
say "ready"
