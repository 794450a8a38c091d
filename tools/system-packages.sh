#!/usr/bin/env bash
# Install Debian packages when that is possible (root, apt-get); otherwise say so and fail.
set -euo pipefail
missing=()
for name in "$@"; do
  dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed, and this user cannot install it: ${missing[*]}" >&2
  exit 1
fi
printf '\033[1m==>\033[0m installing %s\n' "${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
