#!/usr/bin/env bash
# Install the system packages that tests need, where this user may; else name them and what they cost.
set -eu

has_vulkan() {
  [ "$(uname)" = Darwin ] && return
  ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json 2>/dev/null | grep -q .
}

has_chromium() {
  local name
  if [ -n "${ZLLM_CHROMIUM:-}" ]; then
    command -v "$ZLLM_CHROMIUM" >/dev/null 2>&1
    return
  fi
  for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null 2>&1 && return
  done
  [ -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ]
}

missing=()
cost=()
if ! has_vulkan; then
  missing+=(mesa-vulkan-drivers)
  cost+=("the tests marked vulkan")
fi
if ! has_chromium; then
  missing+=(chromium)
  cost+=("the tests marked browser")
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1; then
  echo "packages: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  if apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null; then
    exit 0
  fi
fi

lost=${cost[0]}
[ ${#cost[@]} -eq 1 ] || lost="$lost and ${cost[1]}"
echo "packages: ${missing[*]} missing, so $lost cannot run (Debian: apt-get install ${missing[*]})" >&2
[ "${CI:-}" != true ]
