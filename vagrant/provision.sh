#!/bin/sh
# Installs what lbagent needs on Debian 12/13 and Ubuntu 22.04/24.04: some packages by apt, the rest into .venv of this checkout.
# `make` runs it before everything else, Vagrant runs it once in the virtual machine. A second run finds its stamp and ends at once.
#   usage: vagrant/provision.sh [CHECKOUT]
set -eu

here=$(cd "${1:-$(dirname "$0")/..}" && pwd)
stamp=$here/.venv/.provisioned
# a new dependency or another checkout (a virtual environment contains absolute paths) needs another run
want=$({ echo "$here"; cat "$here/pyproject.toml" "$here/requirements-dev.txt" "$here/vagrant/provision.sh"; } | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && [ -x "$here/.venv/bin/python" ]; then
    exit 0
fi

fail() {
    echo "provision.sh: $*" >&2
    exit 1
}

say() {
    echo "== $*" >&2
}

# retry: a name server may not answer for a moment
retried() {
    for pause in 5 20 60; do
        "$@" && return 0
        say "failed, again in $pause s: $1 $2"
        sleep "$pause"
    done
    "$@"
}

installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# python3-bpfcc brings libbpfcc, LLVM and libbpf: to build the programs, never to run them
# miniupnpd-nftables is the router of tests: the program alone, without the service of the package miniupnpd
# bird2 announces in the tests of BGP, and is their router
# openssh-client and openssl make the keys of the tests' ssh hosts and API servers
# groff-base checks the manual pages (make man)
packages="python3-bpfcc python3-venv iproute2 nftables ethtool bird2 make ca-certificates miniupnpd-nftables openssh-client openssl groff-base"
python=/usr/bin/python3

command -v dpkg-query >/dev/null || fail "this script installs packages on Debian and Ubuntu only; elsewhere install BCC's Python" \
    "module, python >= 3.11, iproute2 and nftables, then run: python3 -m venv --system-site-packages .venv &&" \
    ".venv/bin/pip install --require-hashes -r requirements-dev.txt && .venv/bin/pip install --no-deps --no-build-isolation -e ."

if [ -x /usr/bin/python3 ] && ! /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    # Ubuntu 22.04: 3.10 is the default, 3.11 is in its archive; BCC's module is found by its path (bpf/compiler/compile.py)
    packages="$packages python3.11 python3.11-venv"
    python=/usr/bin/python3.11
fi

missing=
for package in $packages; do
    installed "$package" || missing="$missing $package"
done
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || fail "these packages are missing:$missing. Run this with sudo to install them."
    say "apt: installing$missing"
    case "$missing " in
    *" bird2 "*)
        # the package starts its own BIRD, which this machine does not need; `systemctl unmask bird` allows it
        bird_unit=/etc/systemd/system/bird.service
        [ -e "$bird_unit" ] || [ -L "$bird_unit" ] || { mkdir -p "${bird_unit%/*}" && ln -s /dev/null "$bird_unit"; }
        ;;
    esac
    export DEBIAN_FRONTEND=noninteractive
    # a fresh cloud image may still be running its own apt
    retried apt-get -o DPkg::Lock::Timeout=300 -qq update || fail "apt-get update failed; is there a network?"
    # shellcheck disable=SC2086 # a list of words
    retried apt-get -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends install $missing >/dev/null || fail "apt-get install failed"
fi

say "python: $($python --version 2>&1), virtual environment in $here/.venv"
if [ ! -x "$here/.venv/bin/pip" ] || ! "$here/.venv/bin/python" -c '' 2>/dev/null; then
    rm -rf "$here/.venv"
    "$python" -m venv --system-site-packages "$here/.venv"
fi
cd "$here"
# only files whose hashes are in the list are installed; the checkout itself is built with the hatchling of that list
pip="-m pip --disable-pip-version-check install --quiet --root-user-action=ignore"
# shellcheck disable=SC2086 # a list of words
retried .venv/bin/python $pip --require-hashes -r requirements-dev.txt ||
    fail "pip could not install the Python packages; its output is above"
# shellcheck disable=SC2086
.venv/bin/python $pip --no-deps --no-build-isolation -e . || fail "pip could not install this checkout; its output is above"

echo "$want" >"$stamp"
say "installed"
